-- Jobs have a place among those that wait (scheduling.py), and their own count of statuses: whoever changes a job need
-- not change its run. What an attempt under way is stands in its job's row; a row of `attempts` is written at its end.

ALTER TABLE jobs ADD COLUMN repository TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;  -- of the newest status told about this job
ALTER TABLE jobs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;      -- given when it first waits for a slot
ALTER TABLE jobs ADD COLUMN waiting_since REAL;                   -- when it last began to wait for a slot

-- What workflows say about failures and about the run as a whole, and why a running job is asked to end.
ALTER TABLE jobs ADD COLUMN condition TEXT NOT NULL DEFAULT 'success';
ALTER TABLE jobs ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;        -- its author's budget
ALTER TABLE jobs ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;        -- what is spent of it
ALTER TABLE jobs ADD COLUMN ending TEXT NOT NULL DEFAULT '';           -- the reason for which cancel_asked was set
ALTER TABLE jobs ADD COLUMN ending_detail TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN timeout_at REAL;                           -- its jobs have ended by then, or are ended
CREATE INDEX runs_timed ON runs (timeout_at) WHERE timeout_at IS NOT NULL AND finished_at IS NULL;
-- Those that nobody plans yet, and no others: however many are being planned, nobody walks past them.
CREATE INDEX runs_to_plan ON runs (age) WHERE state = 'planning' AND plan_worker IS NULL;

UPDATE jobs SET
    repository = (SELECT runs.repository FROM runs WHERE runs.run_id = jobs.run_id),
    sequence = (SELECT runs.sequence FROM runs WHERE runs.run_id = jobs.run_id);
UPDATE jobs SET waiting_since = created_at WHERE finished_at IS NULL AND state <> 'blocked';
UPDATE jobs SET turn = places.turn FROM (
    SELECT age, row_number() OVER (PARTITION BY runs_on, priority, repository, state ORDER BY age) AS turn
    FROM jobs WHERE finished_at IS NULL AND state <> 'blocked'
) AS places WHERE places.age = jobs.age;
DELETE FROM attempts WHERE finished_at IS NULL;

-- What a repository's next job gets as its turn; a queue that is empty forgets them.
CREATE TABLE turns (
    label      TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    repository TEXT NOT NULL,
    next_turn  INTEGER NOT NULL,
    PRIMARY KEY (label, priority, repository)
) WITHOUT ROWID;
INSERT INTO turns SELECT runs_on, priority, repository, max(turn) + 1
    FROM jobs WHERE finished_at IS NULL AND state <> 'blocked' GROUP BY runs_on, priority, repository;

-- The turn at which newcomers come in, per queue.
CREATE TABLE clocks (
    label    TEXT NOT NULL,
    priority INTEGER NOT NULL,
    clock    INTEGER NOT NULL,
    PRIMARY KEY (label, priority)
) WITHOUT ROWID;

-- A claim reads the beginning of one of these; a repository's running jobs are counted in the next.
CREATE INDEX jobs_in_order ON jobs (runs_on, priority, turn, age) WHERE state = 'waiting';
CREATE INDEX jobs_by_wait ON jobs (runs_on, waiting_since, age) WHERE state = 'waiting';
CREATE INDEX jobs_running ON jobs (repository) WHERE state = 'running';
CREATE INDEX jobs_in_backoff ON jobs (retry_at) WHERE state = 'backoff';
DROP INDEX jobs_open;
CREATE INDEX jobs_open ON jobs (state, runs_on) WHERE finished_at IS NULL;
