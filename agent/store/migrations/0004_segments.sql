-- The past that the recorder keeps. The files in `recorder/` hold the traces; a file that is not listed here is removed at
-- the next start, and so is a row without its file.

CREATE TABLE segments (
    -- Random; the name of the file.
    number INTEGER PRIMARY KEY,
    job_kind TEXT NOT NULL,
    job_id TEXT NOT NULL,
    -- The user of the process.
    uid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    -- Of its profiler.
    port INTEGER NOT NULL,
    -- What the trace covers, in nanoseconds since the epoch.
    start_ns INTEGER NOT NULL,
    stop_ns INTEGER NOT NULL,
    -- Of the file, and of the trace in it.
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    trace_bytes INTEGER NOT NULL CHECK (trace_bytes >= 0),
    -- JSON: what is in the trace, and whose it is.
    facts TEXT NOT NULL
) STRICT;

CREATE INDEX segments_by_age ON segments (start_ns, number);

-- Windows that were due and were not recorded, or were cut short. Neighbours with one reason are one row.
CREATE TABLE segment_gaps (
    number INTEGER PRIMARY KEY,
    job_kind TEXT NOT NULL,
    job_id TEXT NOT NULL,
    uid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    port INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    stop_ns INTEGER NOT NULL,
    windows INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT;

CREATE INDEX segment_gaps_by_age ON segment_gaps (stop_ns, number);

-- What the owner of a job, or an administrator for them, chose for the processes of one user in that job.
CREATE TABLE recorder_choices (
    job_kind TEXT NOT NULL,
    job_id TEXT NOT NULL,
    uid INTEGER NOT NULL,
    is_on INTEGER NOT NULL,
    -- NULL: that of the settings.
    strategy TEXT,
    chosen_ns INTEGER NOT NULL,
    PRIMARY KEY (job_kind, job_id, uid)
) STRICT, WITHOUT ROWID;

-- Processes whose profiler another program was found to use: they are not recorded again unless their owner asks.
CREATE TABLE recorder_foreign_uses (
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    found_ns INTEGER NOT NULL,
    what TEXT NOT NULL,
    PRIMARY KEY (pid, start_ticks)
) STRICT, WITHOUT ROWID;
