-- What jobs that succeeded give to those that need them, as text; written with the end of the attempt.
CREATE TABLE outputs (
    job_id  TEXT NOT NULL PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE, -- also when an older orchestrator removes the job
    attempt INTEGER NOT NULL,
    content TEXT NOT NULL -- JSON object: text by name
);
