-- What the agent knows of the sessions in its store. The folders are the truth about the traces, and the files in
-- `owners/` about whose they are: all of this except `pinned` and `upload` can be read again from them.

CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    name TEXT NOT NULL PRIMARY KEY,
    -- The id in the manifest.
    id TEXT,
    -- Nanoseconds since the epoch. NULL: the manifest does not say.
    created_ns INTEGER,
    -- Of its parts and its manifest.
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    -- 1: something is missing, or it was never finished.
    partial INTEGER NOT NULL,
    -- JSON list of user ids.
    owners TEXT NOT NULL,
    -- JSON: warnings and context.
    summary TEXT NOT NULL,
    -- 1: retention keeps it.
    pinned INTEGER NOT NULL DEFAULT 0,
    -- 0: periodic, 1: asked for, 2: triggered.
    priority INTEGER NOT NULL DEFAULT 1,
    -- 0: stays here, 1: waits for its upload, 2: uploaded, 3: found in its folder, and not decided yet.
    upload INTEGER NOT NULL DEFAULT 0,
    -- When it was uploaded.
    uploaded_ns INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE parts (
    session TEXT NOT NULL REFERENCES sessions (name) ON DELETE CASCADE,
    file TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    -- Hexadecimal. NULL: the session has no manifest.
    sha256 TEXT,
    PRIMARY KEY (session, file)
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_age ON sessions (created_ns, name);

-- What may be removed, in the order of its removal.
CREATE INDEX uploaded_sessions ON sessions (created_ns, name) WHERE pinned = 0 AND upload = 2;
CREATE INDEX unsent_sessions ON sessions (priority, created_ns, name) WHERE pinned = 0 AND upload <> 2;

-- Count and bytes of all sessions: counting them again would cost more with each session.
CREATE TABLE totals (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    sessions INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;

INSERT INTO totals VALUES (1, 0, 0);

CREATE TRIGGER session_added AFTER INSERT ON sessions BEGIN
    UPDATE totals SET sessions = sessions + 1, bytes = bytes + NEW.bytes;
END;

CREATE TRIGGER session_changed AFTER UPDATE OF bytes ON sessions BEGIN
    UPDATE totals SET bytes = bytes - OLD.bytes + NEW.bytes;
END;

CREATE TRIGGER session_removed AFTER DELETE ON sessions BEGIN
    UPDATE totals SET sessions = sessions - 1, bytes = bytes - OLD.bytes;
END;
