-- Runs that are to start later (plan_at), and what an autoscaler asks (demand.py).

ALTER TABLE runs
    ADD COLUMN runs_on text,                         -- of its request: the label of jobs that name none
    ADD COLUMN due_at double precision GENERATED ALWAYS AS (CASE WHEN state = 'delayed' THEN plan_at END) STORED;
CREATE INDEX runs_delayed ON runs (due_at) INCLUDE (runs_on) WHERE due_at IS NOT NULL;

-- Whose jobs wait is counted in the index itself.
DROP INDEX jobs_by_wait;
CREATE INDEX jobs_by_wait ON jobs (runs_on, waiting_since) INCLUDE (repository) WHERE state = 'waiting';
