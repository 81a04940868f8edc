-- A run that ends well changes nothing that an index looks at: PostgreSQL puts its new version beside the old one on the
-- same page, and no index learns of it. So neither `state` nor `finished_at` may be in an index in whatever way: columns
-- stand between, which stay as they are when a run of one job without a timeout or a group begins and succeeds.

DROP INDEX runs_timed, runs_in_group;
ALTER TABLE runs
    DROP COLUMN ended,                               -- and the indexes of all open runs, and of all that ended
    ADD COLUMN unsuccessful text                     -- how it ended, unless it succeeded
        GENERATED ALWAYS AS (CASE WHEN finished_at IS NOT NULL AND state <> 'succeeded' THEN state END) STORED,
    ADD COLUMN overdue_at double precision           -- timeout_at, until it ends
        GENERATED ALWAYS AS (CASE WHEN finished_at IS NULL THEN timeout_at END) STORED,
    ADD COLUMN open_group bytea                      -- group_key, until it ends
        GENERATED ALWAYS AS (CASE WHEN finished_at IS NULL THEN group_key END) STORED,
    ADD COLUMN of_several boolean                    -- open, and its jobs are more than one, or were not counted
        GENERATED ALWAYS AS (state IN ('waiting', 'running') AND job_count <> 1) STORED;
CREATE INDEX runs_unsuccessful ON runs (unsuccessful, run_id) WHERE unsuccessful IS NOT NULL;
CREATE INDEX runs_timed ON runs (overdue_at) WHERE overdue_at IS NOT NULL;
CREATE INDEX runs_in_group ON runs (open_group) WHERE open_group IS NOT NULL;
-- What is not in them, and waits or runs, is found by its one job (listing.py); what succeeded is most of all there is.
CREATE INDEX runs_of_several ON runs (run_id) WHERE of_several;
CREATE INDEX runs_delayed_in_order ON runs (run_id) WHERE due_at IS NOT NULL;

-- Room for the version that follows, though what was before cannot be cleared away yet. The two indexes that are gone
-- took more. Last, so that what is there already, most of which has ended, is not spread over more pages.
ALTER TABLE runs SET (fillfactor = 45);
