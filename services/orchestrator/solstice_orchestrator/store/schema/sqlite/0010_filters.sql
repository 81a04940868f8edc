-- Runs and jobs are found by what people ask for (reading.py), and a run may be only what failed of another.

ALTER TABLE runs ADD COLUMN ref TEXT;                    -- of its request; a branch is refs/heads/NAME
ALTER TABLE runs ADD COLUMN only_jobs TEXT;              -- JSON list of names; NULL: all that its workflow asks for
ALTER TABLE jobs ADD COLUMN ref TEXT;                    -- of its run
UPDATE runs SET ref = (
    SELECT json_extract(CAST(body AS TEXT), '$.ref') FROM requests
    WHERE requests.age = runs.age AND json_valid(CAST(body AS TEXT))
);
UPDATE jobs SET ref = (SELECT runs.ref FROM runs WHERE runs.run_id = jobs.run_id);
CREATE INDEX runs_by_ref ON runs (ref, run_id);

-- Whatever else is asked for is seen in the index itself, so that no row is read in vain. Only of what is finished: a job
-- comes into them once, at its end.
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (state, job_id, repository, ref, runs_on, priority) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_ended_of_repository ON jobs (repository, state, job_id, ref, runs_on, priority)
    WHERE finished_at IS NOT NULL;
