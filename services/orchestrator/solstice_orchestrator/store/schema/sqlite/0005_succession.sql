-- Who makes way for whom: concurrency groups, and pushes of one branch or change request (groups.py, supersede.py).

ALTER TABLE jobs ADD COLUMN group_key BLOB;                        -- digest of its concurrency group; its spec has the name
ALTER TABLE runs ADD COLUMN group_key BLOB;
ALTER TABLE runs ADD COLUMN group_held INTEGER NOT NULL DEFAULT 0; -- its jobs may go on
ALTER TABLE runs ADD COLUMN concurrency TEXT;                      -- JSON: name and mode of its group
CREATE INDEX jobs_in_group ON jobs (group_key) WHERE group_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_in_group ON runs (group_key) WHERE group_key IS NOT NULL AND finished_at IS NULL;

-- Planned runs of one branch or change request; those that have ended go when the next one is planned.
CREATE TABLE lineages (
    run_id    TEXT PRIMARY KEY NOT NULL,
    lineage   BLOB NOT NULL,            -- digest
    supersede INTEGER,                  -- what its workflow says: 0, 1, or nothing
    rerun     INTEGER NOT NULL          -- somebody asked for it by hand
) WITHOUT ROWID;
CREATE INDEX lineages_by_key ON lineages (lineage);

-- How long the last jobs of a label ran tells when the next may start.
CREATE INDEX jobs_by_end ON jobs (runs_on, finished_at)
    WHERE state IN ('succeeded', 'failed', 'timed_out');
