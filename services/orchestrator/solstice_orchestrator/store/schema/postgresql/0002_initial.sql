-- Requests become runs, runs have jobs, jobs have attempts, attempts have logs; the outbox tells the world.
-- Times are seconds since the epoch by this server's clock. Ids are UUIDs as text; those of runs and jobs grow with time,
-- and so say who came first. What changes often has few indexes, each as small as the work in hand, and room on its
-- pages for the next version of a row.

-- Written once. What makes a request unique is random: digests of 16 bytes keep those indexes small.
CREATE TABLE requests (
    run_id          text COLLATE "C" PRIMARY KEY,
    request_key     bytea NOT NULL UNIQUE,           -- digest of the request id
    idempotency_key bytea UNIQUE,                    -- digest of the idempotency key
    repository      text NOT NULL,                   -- repo_full_name, else repo_url
    created_at      double precision NOT NULL,
    rerun_of        text,
    body            bytea NOT NULL                   -- jobrequest.v1 as it came
);
CREATE INDEX requests_by_repository ON requests (repository, run_id);

-- Request ids that were found to ask for a run that another request id had asked for already.
CREATE TABLE request_aliases (
    request_key bytea PRIMARY KEY,
    run_id      text COLLATE "C" NOT NULL
);

CREATE TABLE runs (
    run_id        text COLLATE "C" PRIMARY KEY,
    state         text NOT NULL DEFAULT 'planning',
    detail        text NOT NULL DEFAULT '',
    sequence      integer NOT NULL DEFAULT 1,        -- of the newest status told about the run itself
    started_at    double precision,
    finished_at   double precision,
    plan_attempt  integer NOT NULL DEFAULT 0,        -- fences planning; grows with every claim
    plan_failures integer NOT NULL DEFAULT 0,        -- attempts that count against the budget
    plan_worker   text,
    plan_since    double precision,                  -- when plan_worker claimed it
    plan_at       double precision NOT NULL DEFAULT 0, -- not to be planned before
    timeout_at    double precision,                  -- its jobs have ended by then, or are ended
    -- What the indexes look at. They leave `state` alone, so that a run that begins to run stays where it is in all of
    -- them, and its new version needs nothing but room on its page.
    to_plan       boolean GENERATED ALWAYS AS (state = 'planning' AND plan_worker IS NULL) STORED,
    ended         text GENERATED ALWAYS AS (CASE WHEN finished_at IS NOT NULL THEN state END) STORED
) WITH (fillfactor = 50);
CREATE INDEX runs_unfinished ON runs (run_id) WHERE ended IS NULL;
CREATE INDEX runs_ended ON runs (ended, run_id) WHERE ended IS NOT NULL;
CREATE INDEX runs_timed ON runs (timeout_at) WHERE timeout_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_to_plan ON runs (run_id) WHERE to_plan;
CREATE INDEX runs_being_planned ON runs (run_id) WHERE plan_worker IS NOT NULL;

CREATE TABLE jobs (
    job_id        text COLLATE "C" PRIMARY KEY,
    run_id        text COLLATE "C" NOT NULL,
    position      integer NOT NULL,                  -- in its workflow
    name          text NOT NULL,
    runs_on       text NOT NULL,
    priority      integer NOT NULL,                  -- 0 is the most urgent
    repository    text NOT NULL,
    needs         text NOT NULL,                     -- JSON list of names
    spec          bytea NOT NULL,                    -- JSON
    state         text NOT NULL,
    reason        text NOT NULL,
    detail        text NOT NULL DEFAULT '',
    sequence      integer NOT NULL DEFAULT 0,        -- of the newest status told about this job
    attempt       integer NOT NULL DEFAULT 0,        -- fences; grows with every claim
    failures      integer NOT NULL DEFAULT 0,        -- attempts that count against the budget
    turn          bigint NOT NULL DEFAULT 0,         -- given when it first waits for a slot
    created_at    double precision NOT NULL,
    waiting_since double precision,                  -- when it last began to wait for a slot
    started_at    double precision,
    finished_at   double precision,
    retry_at      double precision,
    exit_code     integer,
    step          text,
    worker_id     text,
    lease_until   double precision,                  -- in no index: renewing it is a matter of its page alone
    cancel_asked  boolean NOT NULL DEFAULT false,
    condition     text NOT NULL DEFAULT 'success',
    retries       integer NOT NULL DEFAULT 0,        -- its author's budget
    retried       integer NOT NULL DEFAULT 0,        -- what is spent of it
    ending        text NOT NULL DEFAULT '',          -- the reason for which cancel_asked was set
    ending_detail text NOT NULL DEFAULT '',
    UNIQUE (run_id, position)
) WITH (fillfactor = 50);

-- A claim reads the beginning of one of the first two. Together they hold the work in hand, however much is finished.
CREATE INDEX jobs_in_order ON jobs (runs_on, priority, turn, job_id) WHERE state = 'waiting';
CREATE INDEX jobs_by_wait ON jobs (runs_on, waiting_since) WHERE state = 'waiting';
CREATE INDEX jobs_running ON jobs (repository) WHERE state = 'running';
CREATE INDEX jobs_held_up ON jobs (state, retry_at) WHERE state IN ('blocked', 'backoff', 'approval');
CREATE INDEX jobs_ended ON jobs (state, job_id) WHERE finished_at IS NOT NULL;

-- Tries that are over; one that is under way stands in its job's row. No foreign key: it would be asked at every end.
CREATE TABLE attempts (
    job_id      text COLLATE "C" NOT NULL,
    number      integer NOT NULL,
    worker_id   text NOT NULL,
    state       text NOT NULL,
    reason      text NOT NULL,
    started_at  double precision NOT NULL,
    finished_at double precision NOT NULL,
    exit_code   integer,
    step        text,
    detail      text NOT NULL DEFAULT '',
    PRIMARY KEY (job_id, number)
);

CREATE TABLE log_chunks (
    job_id   text COLLATE "C" NOT NULL,
    attempt  integer NOT NULL,
    sequence integer NOT NULL,
    at       double precision NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (job_id, attempt, sequence)
);

CREATE TABLE outbox (
    row_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,                        -- status, dead_letter
    request_id text NOT NULL,
    body       bytea NOT NULL,
    headers    text NOT NULL DEFAULT '{}'            -- JSON
);

-- One publisher at a time keeps the order of what is told.
CREATE TABLE outbox_lease (
    only_row integer PRIMARY KEY CHECK (only_row = 1),
    holder   text NOT NULL,
    until    double precision NOT NULL
) WITH (fillfactor = 20);
INSERT INTO outbox_lease VALUES (1, '', 0);

CREATE TABLE workers (
    worker_id  text COLLATE "C" PRIMARY KEY,
    started_at double precision NOT NULL,
    seen_at    double precision NOT NULL
) WITH (fillfactor = 50);

-- What a repository's next job gets as its turn; a queue that is empty forgets them.
CREATE TABLE turns (
    label      text NOT NULL,
    priority   integer NOT NULL,
    repository text NOT NULL,
    next_turn  bigint NOT NULL,
    PRIMARY KEY (label, priority, repository)
) WITH (fillfactor = 50);

-- The turn at which newcomers come in, per queue.
CREATE TABLE clocks (
    label    text NOT NULL,
    priority integer NOT NULL,
    clock    bigint NOT NULL,
    PRIMARY KEY (label, priority)
) WITH (fillfactor = 50);
