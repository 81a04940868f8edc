-- What jobs handed out; the archives are in ARTIFACT_DIRECTORY, named by their digests.
CREATE TABLE artifacts (
    job_id     text COLLATE "C" NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE, -- also when an older orchestrator removes the job
    name       text COLLATE "C" NOT NULL,
    attempt    integer NOT NULL,
    digest     text COLLATE "C" NOT NULL, -- SHA-256
    size       bigint NOT NULL, -- bytes
    files      integer NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX artifacts_by_digest ON artifacts (digest, size);
CREATE INDEX artifacts_by_expiry ON artifacts (expires_at);
