-- What the test reports of attempts say; a job's are removed with it, also by an older orchestrator.
CREATE TABLE test_reports (
    job_id     text COLLATE "C" NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    attempt    integer NOT NULL,
    repository text COLLATE "C" NOT NULL,
    ref        text COLLATE "C",
    commit_sha text COLLATE "C" NOT NULL,
    trusted    boolean NOT NULL,
    created_at double precision NOT NULL,
    passed     integer NOT NULL,
    failed     integer NOT NULL,
    errored    integer NOT NULL,
    skipped    integer NOT NULL,
    flaky      integer NOT NULL,
    seconds    double precision NOT NULL,
    details    bytea NOT NULL, -- JSON: failed, flaky and slowest tests, problems
    results    bytea NOT NULL, -- digest, state and time of each test
    PRIMARY KEY (job_id, attempt)
);
CREATE INDEX test_reports_by_repository ON test_reports (repository, created_at);
