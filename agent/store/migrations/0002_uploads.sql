-- Sessions on their way to destinations, and those that are there.

CREATE TABLE uploads (
    -- Random: a number never stands for another upload, not even in the database after a damaged one.
    number INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    destination TEXT NOT NULL,
    -- Without placeholders. Empty: the settings' URL gives none for this session.
    url TEXT NOT NULL,
    -- The id in the session's manifest.
    manifest_id TEXT NOT NULL,
    -- 0: periodic, 1: asked for, 2: triggered.
    priority INTEGER NOT NULL,
    queued_ns INTEGER NOT NULL,
    -- Of all files.
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    -- 0: waits or runs, 1: done, 2: failed.
    state INTEGER NOT NULL DEFAULT 0,
    -- 1: the session was found without a state. It is only uploaded where it was before.
    derived INTEGER NOT NULL DEFAULT 0,
    -- The session's name there, once it is claimed.
    name_there TEXT,
    -- How many names are claimed by other sessions.
    refused INTEGER NOT NULL DEFAULT 0,
    done_ns INTEGER,
    -- Files whose checksum the destination did not say.
    unverified INTEGER NOT NULL DEFAULT 0,
    -- Of the last attempt that failed.
    failure_class TEXT,
    failure TEXT,
    UNIQUE (session, destination)
) STRICT;

CREATE INDEX unfinished_uploads ON uploads (number) WHERE state <> 1;

CREATE TABLE upload_files (
    upload INTEGER NOT NULL REFERENCES uploads (number) ON DELETE CASCADE,
    file TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    -- 0: unknown, 1: missing, 2: in parts, 3: sent, 4: there, 5: failed.
    state INTEGER NOT NULL,
    -- How often the object was not as it was sent.
    damaged INTEGER NOT NULL DEFAULT 0,
    -- Of the object; of a missing file the one to replace.
    generation TEXT,
    etag TEXT,
    crc32c INTEGER,
    verified INTEGER NOT NULL DEFAULT 0,
    -- Of a file in parts.
    parts_id TEXT,
    PRIMARY KEY (upload, file)
) STRICT, WITHOUT ROWID;

CREATE TABLE upload_parts (
    upload INTEGER NOT NULL,
    file TEXT NOT NULL,
    part INTEGER NOT NULL,
    tag TEXT NOT NULL,
    crc32c INTEGER NOT NULL,
    PRIMARY KEY (upload, file, part),
    FOREIGN KEY (upload, file) REFERENCES upload_files (upload, file) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Parts that were begun at a destination, until their object is made or they are removed.
CREATE TABLE begun_parts (
    destination TEXT NOT NULL,
    url TEXT NOT NULL,
    -- Of the object, below the URL.
    path TEXT NOT NULL,
    parts_id TEXT NOT NULL,
    begun_ns INTEGER NOT NULL,
    PRIMARY KEY (url, path, parts_id)
) STRICT, WITHOUT ROWID;

-- What waits for a session that is gone will never be sent.
CREATE TRIGGER session_gone AFTER DELETE ON sessions BEGIN
    DELETE FROM uploads WHERE session = OLD.name;
END;
