-- When a run came as a push of its ref; null: it is of a change request or a rerun, or has no ref (watermarks).
ALTER TABLE runs ADD COLUMN pushed_at REAL;
UPDATE runs SET pushed_at = created_at
    WHERE ref IS NOT NULL AND change_key IS NULL AND rerun_of IS NULL AND length(repository) + length(ref) <= 600;
CREATE INDEX runs_by_push ON runs (repository, ref, run_id) WHERE pushed_at IS NOT NULL;
