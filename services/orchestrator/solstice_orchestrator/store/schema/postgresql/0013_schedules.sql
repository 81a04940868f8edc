-- What is to be built regularly (cron.py), and what became of every tick (ticks.py).

CREATE TABLE schedules (
    schedule_id     text COLLATE "C" PRIMARY KEY,
    name            text COLLATE "C" NOT NULL,
    repo_url        text NOT NULL,
    repo_full_name  text,
    branch          text NOT NULL,
    cron            text NOT NULL,
    timezone        text NOT NULL,
    missed          text NOT NULL,           -- once, skip
    overlap         text NOT NULL,           -- queue, skip
    workflow_path   text,
    workflow_job_id text,
    runs_on         text,
    priority        text,
    paused          boolean NOT NULL,
    created_by      text,
    created_at      double precision NOT NULL,
    changed_at      double precision NOT NULL,
    considered_at   double precision NOT NULL,           -- every tick up to here has its row
    next_at         double precision                     -- of the next tick; null while paused
);

CREATE UNIQUE INDEX schedules_by_name ON schedules (name);
CREATE INDEX schedules_to_consider ON schedules (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE ticks (
    tick_id     text COLLATE "C" PRIMARY KEY,            -- derived from schedule and time; the request id of its run
    schedule_id text COLLATE "C" NOT NULL,
    tick_at     double precision NOT NULL,
    first_at    double precision,                        -- of several that were missed in a row
    ticks       integer NOT NULL,            -- how many it stands for
    by_hand     boolean NOT NULL,
    state       text NOT NULL,               -- due, fired, skipped, failed
    reason      text NOT NULL,
    detail      text NOT NULL,
    attempt     integer NOT NULL,            -- fences
    failures    integer NOT NULL,
    retry_at    double precision,                        -- of one that is due
    lease_until double precision,
    worker_id   text,
    settled_at  double precision,
    run_id      text,
    commit_sha  text
);

CREATE INDEX ticks_of_schedule ON ticks (schedule_id, tick_at);
CREATE INDEX ticks_to_fire ON ticks (retry_at) WHERE state = 'due';
CREATE INDEX ticks_to_forget ON ticks (settled_at) WHERE settled_at IS NOT NULL;
