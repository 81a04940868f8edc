-- Columns by the names that the code has for them: when a run or a cancel was requested, and whether a job's end was.
ALTER TABLE jobs RENAME COLUMN cancel_asked TO cancel_requested;
ALTER TABLE ref_runs RENAME COLUMN asked_at TO requested_at;
ALTER TABLE cancels RENAME COLUMN asked_at TO requested_at;
