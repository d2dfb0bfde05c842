-- What programs say of themselves. A mark is of the job of one user, by the name that the program gives it.

CREATE TABLE mark_jobs (
    -- Never that of an earlier job: an agent may remember that one.
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid INTEGER NOT NULL,
    name TEXT NOT NULL,
    -- The workload of the process that marked last, if it had one.
    job_kind TEXT,
    job_id TEXT,
    -- Of its marks that are kept.
    marks INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    -- Marks that never came, that were refused, and that were removed because there was no room for them.
    lost INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    removed INTEGER NOT NULL DEFAULT 0,
    -- When its last mark came.
    last_ns INTEGER NOT NULL,
    UNIQUE (uid, name)
) STRICT;

-- Up to which number the marks of a recorder are stored: what it sends again is known by that.
CREATE TABLE mark_recorders (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid INTEGER NOT NULL,
    id TEXT NOT NULL,
    stored INTEGER NOT NULL,
    -- The job of its last mark, and what is to be counted there once there is one.
    job INTEGER,
    lost INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    last_ns INTEGER NOT NULL,
    UNIQUE (uid, id)
) STRICT;

CREATE INDEX mark_recorders_by_age ON mark_recorders (uid, last_ns);

CREATE TABLE marks (
    -- In the order in which they came.
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    -- NULL: of a recorder that does not number its marks.
    recorder INTEGER,
    -- The time that the program gives, in nanoseconds since the epoch.
    at_ns INTEGER NOT NULL,
    -- JSON: one object, as the program sent it.
    payload TEXT NOT NULL
) STRICT;

CREATE INDEX marks_by_job ON marks (job, number);
