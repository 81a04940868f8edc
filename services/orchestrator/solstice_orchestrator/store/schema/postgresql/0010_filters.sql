-- Runs and jobs are found by what people ask for (reading.py), and a run may be only what failed of another.

ALTER TABLE requests
    ADD COLUMN ref text,                             -- a branch is refs/heads/NAME
    ADD COLUMN only_jobs text;                       -- JSON list of names; NULL: all that its workflow asks for
ALTER TABLE jobs ADD COLUMN ref text;                -- of its run

-- What JSON may hold and PostgreSQL's texts may not, a zero byte in a field that nobody knows, is no reason to stop.
CREATE FUNCTION pg_temp.ref_of(body bytea) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN convert_from(body, 'UTF8')::json ->> 'ref';
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;
UPDATE requests SET ref = pg_temp.ref_of(body);
UPDATE jobs SET ref = requests.ref FROM requests WHERE requests.run_id = jobs.run_id AND requests.ref IS NOT NULL;
CREATE INDEX requests_by_ref ON requests (ref, run_id);

-- Whatever else is asked for is seen in the index itself, so that no row is read in vain. Only of what is finished: a job
-- comes into them once, at its end.
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (state, job_id, repository, ref, runs_on, priority) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_ended_of_repository ON jobs (repository, state, job_id, ref, runs_on, priority)
    WHERE finished_at IS NOT NULL;
