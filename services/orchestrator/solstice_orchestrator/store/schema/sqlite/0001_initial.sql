-- Requests become runs, runs have jobs, jobs have attempts, attempts have logs; the outbox tells the world.
-- Times are seconds since the epoch. Ids are UUIDs; those of runs and jobs grow with time. What makes a request unique
-- is random, so each new one dirties a page of its index wherever it falls: digests of 16 bytes keep those pages few.

CREATE TABLE runs (
    age             INTEGER PRIMARY KEY,        -- the order of arrival
    run_id          TEXT NOT NULL UNIQUE,
    request_key     BLOB NOT NULL UNIQUE,       -- digest of the request id
    idempotency_key BLOB UNIQUE,                -- digest of the idempotency key
    repository      TEXT NOT NULL,              -- repo_full_name, else repo_url
    state           TEXT NOT NULL DEFAULT 'planning',
    detail          TEXT NOT NULL DEFAULT '',
    sequence        INTEGER NOT NULL DEFAULT 1, -- of the newest status told about this run or a job of it
    created_at      REAL NOT NULL,
    started_at      REAL,
    finished_at     REAL,
    rerun_of        TEXT,
    plan_attempt    INTEGER NOT NULL DEFAULT 0, -- fences planning; grows with every claim
    plan_failures   INTEGER NOT NULL DEFAULT 0, -- attempts that count against the budget
    plan_worker     TEXT,
    plan_since      REAL,                       -- when plan_worker claimed it
    plan_at         REAL NOT NULL DEFAULT 0     -- not to be planned before
);

CREATE INDEX runs_by_state ON runs (state, run_id);
CREATE INDEX runs_by_repository ON runs (repository, run_id);

-- Apart from its run, which is written again at each of its steps: this is written once.
CREATE TABLE requests (
    age  INTEGER PRIMARY KEY REFERENCES runs (age),
    body BLOB NOT NULL                          -- jobrequest.v1 as it came
);

-- Request ids that were found to ask for a run that another request id had asked for already.
CREATE TABLE request_aliases (
    request_key BLOB PRIMARY KEY NOT NULL,
    run_id      TEXT NOT NULL               -- no foreign key: it would have to be searched for whenever a run goes
) WITHOUT ROWID;

CREATE TABLE jobs (
    age          INTEGER PRIMARY KEY,           -- the order of arrival
    job_id       TEXT NOT NULL UNIQUE,
    run_id       TEXT NOT NULL REFERENCES runs (run_id),
    position     INTEGER NOT NULL,              -- in its workflow
    name         TEXT NOT NULL,
    runs_on      TEXT NOT NULL,
    priority     INTEGER NOT NULL,              -- 0 is the most urgent
    needs        TEXT NOT NULL,                 -- JSON list of names
    spec         BLOB NOT NULL,                 -- JSON
    state        TEXT NOT NULL,
    reason       TEXT NOT NULL,
    detail       TEXT NOT NULL DEFAULT '',
    attempt      INTEGER NOT NULL DEFAULT 0,    -- fences; grows with every claim
    failures     INTEGER NOT NULL DEFAULT 0,    -- attempts that count against the budget
    created_at   REAL NOT NULL,
    started_at   REAL,
    finished_at  REAL,
    retry_at     REAL,
    exit_code    INTEGER,
    step         TEXT,
    worker_id    TEXT,
    lease_until  REAL,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_id, position),
    UNIQUE (run_id, name)
);

-- Claims, counts and rescues look only here: it stays as small as the work in hand, however much is finished.
CREATE INDEX jobs_open ON jobs (state, runs_on, priority, age) WHERE finished_at IS NULL;
CREATE INDEX jobs_ended ON jobs (state, age) WHERE finished_at IS NOT NULL;

CREATE TABLE attempts (
    job_id      TEXT NOT NULL REFERENCES jobs (job_id),
    number      INTEGER NOT NULL,
    worker_id   TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    started_at  REAL NOT NULL,
    finished_at REAL,
    exit_code   INTEGER,
    step        TEXT,
    detail      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;

CREATE TABLE log_chunks (
    job_id   TEXT NOT NULL REFERENCES jobs (job_id),
    attempt  INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at       REAL NOT NULL,
    data     BLOB NOT NULL,
    PRIMARY KEY (job_id, attempt, sequence)
);

CREATE TABLE outbox (
    row_id     INTEGER PRIMARY KEY AUTOINCREMENT,
    kind       TEXT NOT NULL,                   -- status, dead_letter
    request_id TEXT NOT NULL,
    body       BLOB NOT NULL,
    headers    TEXT NOT NULL DEFAULT '{}'       -- JSON
);

-- One publisher at a time keeps the order of what is told.
CREATE TABLE outbox_lease (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    holder   TEXT NOT NULL,
    until    REAL NOT NULL
);
INSERT INTO outbox_lease VALUES (1, '', 0);

CREATE TABLE workers (
    worker_id  TEXT PRIMARY KEY NOT NULL,
    started_at REAL NOT NULL,
    seen_at    REAL NOT NULL
) WITHOUT ROWID;
