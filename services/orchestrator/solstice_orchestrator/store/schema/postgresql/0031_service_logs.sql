-- What the services of jobs wrote.
CREATE TABLE service_log_chunks (
    job_id   text COLLATE "C" NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, -- also when an older orchestrator removes the job
    attempt  integer NOT NULL,
    service  text NOT NULL,
    sequence integer NOT NULL,
    at       double precision NOT NULL,
    data     bytea NOT NULL,
    kind     text, -- mark; null: output of the service
    PRIMARY KEY (job_id, attempt, service, sequence)
);
