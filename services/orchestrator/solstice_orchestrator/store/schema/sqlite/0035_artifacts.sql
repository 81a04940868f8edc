-- What jobs handed out; the archives are in ARTIFACT_DIRECTORY, named by their digests.
CREATE TABLE artifacts (
    job_id     TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, -- also when an older orchestrator removes the job
    name       TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    digest     TEXT NOT NULL, -- SHA-256
    size       INTEGER NOT NULL, -- bytes
    files      INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX artifacts_by_digest ON artifacts (digest, size);
CREATE INDEX artifacts_by_expiry ON artifacts (expires_at);
