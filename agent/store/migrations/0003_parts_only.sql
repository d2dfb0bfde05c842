-- 1: only the parts are sent. The manifest of a session over several hosts is put when all hosts have sent theirs.
ALTER TABLE uploads ADD COLUMN parts_only INTEGER NOT NULL DEFAULT 0;
