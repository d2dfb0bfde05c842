-- The jobs of this host over time: a row for each attempt. `agent/jobs` says what the facts mean.

CREATE TABLE job_attempts (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    -- Empty where there is none, or it is not known.
    cluster TEXT NOT NULL,
    uid INTEGER NOT NULL,
    id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    is_open INTEGER NOT NULL,
    -- NULL: only its end is known.
    start_ns INTEGER,
    last_event_ns INTEGER NOT NULL,
    name TEXT,
    -- Another id by which its user knows it.
    other_id TEXT,
    -- JSON.
    facts TEXT NOT NULL,
    UNIQUE (kind, uid, id, cluster, attempt)
) STRICT;

CREATE INDEX job_attempts_by_id ON job_attempts (id);
CREATE INDEX job_attempts_by_name ON job_attempts (name) WHERE name IS NOT NULL;
CREATE INDEX job_attempts_by_other_id ON job_attempts (other_id) WHERE other_id IS NOT NULL;
CREATE INDEX job_attempts_by_age ON job_attempts (last_event_ns);
CREATE INDEX job_attempts_open ON job_attempts (number) WHERE is_open;
