-- How many jobs a run has been given.

ALTER TABLE runs ADD COLUMN job_count INTEGER NOT NULL DEFAULT 0; -- of a run that is not planned yet, or ended before this
UPDATE runs SET job_count = (SELECT count(*) FROM jobs WHERE jobs.run_id = runs.run_id) WHERE finished_at IS NULL;
