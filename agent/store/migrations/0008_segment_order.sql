-- The order in which segments were kept: after the clock was set back their times do not tell it. 0: kept by an earlier version.

ALTER TABLE segments ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;

CREATE INDEX segments_by_order ON segments (kept, start_ns, number);
