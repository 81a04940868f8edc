-- What the test reports of attempts say; a job's are removed with it, also by an older orchestrator.
CREATE TABLE test_reports (
    job_id     TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    attempt    INTEGER NOT NULL,
    repository TEXT NOT NULL,
    ref        TEXT,
    commit_sha TEXT NOT NULL,
    trusted    INTEGER NOT NULL,
    created_at REAL NOT NULL,
    passed     INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    errored    INTEGER NOT NULL,
    skipped    INTEGER NOT NULL,
    flaky      INTEGER NOT NULL,
    seconds    REAL NOT NULL,
    details    BLOB NOT NULL, -- JSON: failed, flaky and slowest tests, problems
    results    BLOB NOT NULL, -- digest, state and time of each test
    PRIMARY KEY (job_id, attempt)
);
CREATE INDEX test_reports_by_repository ON test_reports (repository, created_at);
