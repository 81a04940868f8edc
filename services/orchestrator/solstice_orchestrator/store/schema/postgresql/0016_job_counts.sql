-- Whether a job is the only one of its run is seen in the run itself, which a claim reads anyway.

ALTER TABLE runs ADD COLUMN job_count integer NOT NULL DEFAULT 0;  -- of a run that is not planned yet, or ended before this
UPDATE runs SET job_count = (SELECT count(*) FROM jobs WHERE jobs.run_id = runs.run_id) WHERE ended IS NULL;
