-- What the services of jobs wrote.
CREATE TABLE service_log_chunks (
    job_id   TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, -- also when an older orchestrator removes the job
    attempt  INTEGER NOT NULL,
    service  TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    at       REAL NOT NULL,
    data     BLOB NOT NULL,
    kind     TEXT, -- mark; null: output of the service
    PRIMARY KEY (job_id, attempt, service, sequence)
);
