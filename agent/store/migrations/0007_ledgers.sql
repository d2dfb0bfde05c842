-- Where the time of each job goes, as this host sees it.

CREATE TABLE ledgers (
    number INTEGER PRIMARY KEY,
    job_kind TEXT NOT NULL,
    job_cluster TEXT NOT NULL,
    job_id TEXT NOT NULL,
    -- The user of the job.
    uid INTEGER NOT NULL,
    -- What it is called, for people; it may be empty.
    name TEXT NOT NULL,
    -- The first second and the one after the last, since the epoch.
    first_s INTEGER NOT NULL,
    end_s INTEGER NOT NULL,
    -- JSON: what is known so far.
    state TEXT NOT NULL,
    UNIQUE (job_kind, job_cluster, job_id, uid)
) STRICT;

CREATE INDEX ledgers_by_age ON ledgers (end_s, number);

-- One hour of a ledger, counted from its first second.
CREATE TABLE ledger_hours (
    ledger INTEGER NOT NULL REFERENCES ledgers (number) ON DELETE CASCADE,
    hour INTEGER NOT NULL,
    -- Seconds of one entry: 1 or 60.
    step_s INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (ledger, hour)
) STRICT, WITHOUT ROWID;
