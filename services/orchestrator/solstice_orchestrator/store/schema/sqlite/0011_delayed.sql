-- Runs that are to start later (plan_at), and what an autoscaler asks (demand.py).

ALTER TABLE runs ADD COLUMN runs_on TEXT;                -- of its request: the label of jobs that name none
CREATE INDEX runs_delayed ON runs (plan_at, runs_on) WHERE state = 'delayed';

-- Whose jobs wait is counted in the index itself.
DROP INDEX jobs_by_wait;
CREATE INDEX jobs_by_wait ON jobs (runs_on, waiting_since, age, repository) WHERE state = 'waiting';
