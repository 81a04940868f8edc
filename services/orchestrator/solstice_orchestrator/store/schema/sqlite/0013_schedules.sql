-- What is to be built regularly (cron.py), and what became of every tick (ticks.py).

CREATE TABLE schedules (
    schedule_id     TEXT PRIMARY KEY,
    name            TEXT NOT NULL,
    repo_url        TEXT NOT NULL,
    repo_full_name  TEXT,
    branch          TEXT NOT NULL,
    cron            TEXT NOT NULL,
    timezone        TEXT NOT NULL,
    missed          TEXT NOT NULL,           -- once, skip
    overlap         TEXT NOT NULL,           -- queue, skip
    workflow_path   TEXT,
    workflow_job_id TEXT,
    runs_on         TEXT,
    priority        TEXT,
    paused          INTEGER NOT NULL,
    created_by      TEXT,
    created_at      REAL NOT NULL,
    changed_at      REAL NOT NULL,
    considered_at   REAL NOT NULL,           -- every tick up to here has its row
    next_at         REAL                     -- of the next tick; null while paused
) WITHOUT ROWID;

CREATE UNIQUE INDEX schedules_by_name ON schedules (name);
CREATE INDEX schedules_to_consider ON schedules (next_at) WHERE next_at IS NOT NULL;

CREATE TABLE ticks (
    tick_id     TEXT PRIMARY KEY,            -- derived from schedule and time; the request id of its run
    schedule_id TEXT NOT NULL,
    tick_at     REAL NOT NULL,
    first_at    REAL,                        -- of several that were missed in a row
    ticks       INTEGER NOT NULL,            -- how many it stands for
    by_hand     INTEGER NOT NULL,
    state       TEXT NOT NULL,               -- due, fired, skipped, failed
    reason      TEXT NOT NULL,
    detail      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,            -- fences
    failures    INTEGER NOT NULL,
    retry_at    REAL,                        -- of one that is due
    lease_until REAL,
    worker_id   TEXT,
    settled_at  REAL,
    run_id      TEXT,
    commit_sha  TEXT
) WITHOUT ROWID;

CREATE INDEX ticks_of_schedule ON ticks (schedule_id, tick_at);
CREATE INDEX ticks_to_fire ON ticks (retry_at) WHERE state = 'due';
CREATE INDEX ticks_to_forget ON ticks (settled_at) WHERE settled_at IS NOT NULL;
