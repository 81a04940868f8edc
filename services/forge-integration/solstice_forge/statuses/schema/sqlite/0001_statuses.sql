-- What a commit shall show: one row for each context of each commit, the newest status only.
CREATE TABLE statuses (
    row_id INTEGER PRIMARY KEY AUTOINCREMENT,
    source_name TEXT NOT NULL,
    repository TEXT NOT NULL,
    commit_sha TEXT NOT NULL,
    context TEXT NOT NULL,
    -- Its place in the order of its context: runs by their ids, which grow; within a run by sequence, then revision.
    run_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    state TEXT NOT NULL,
    final INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    body BLOB NOT NULL,                -- jobstatus.v1 as it came
    kept_at REAL NOT NULL,
    phase TEXT NOT NULL DEFAULT 'pending',  -- pending, told, dead
    next_at REAL NOT NULL,             -- not told before
    failures INTEGER NOT NULL DEFAULT 0,    -- in a row
    failing_since REAL,
    last_failure TEXT NOT NULL DEFAULT '',
    calls INTEGER NOT NULL DEFAULT 0,  -- that said something of this context, in all
    told_at REAL,
    told_state TEXT NOT NULL DEFAULT '',
    check_id INTEGER,                  -- GitHub's check run, of `check_run_id`
    check_run_id TEXT NOT NULL DEFAULT '',
    flying_since REAL,                 -- a call is under way
    flying TEXT NOT NULL DEFAULT '',   -- with the status at this place
    unsure TEXT NOT NULL DEFAULT '',   -- the status at this place may reach the forge yet,
    unsure_until REAL NOT NULL DEFAULT 0,   -- up to this moment: until then no other goes out
    UNIQUE (source_name, repository, commit_sha, context)
);

CREATE INDEX statuses_pending ON statuses (source_name, next_at) WHERE phase = 'pending' AND flying_since IS NULL;
CREATE INDEX statuses_flying ON statuses (flying_since) WHERE flying_since IS NOT NULL;
CREATE INDEX statuses_settled ON statuses (kept_at) WHERE phase <> 'pending';
CREATE INDEX statuses_of_request ON statuses (request_id);

-- What a forge will never take, until it is with the dead letters.
CREATE TABLE letters (
    row_id INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL
);

-- What is known of the limits of each source's forge, for whoever tells next.
CREATE TABLE limits (
    source_name TEXT PRIMARY KEY,
    not_before REAL NOT NULL,
    paced_until REAL NOT NULL,
    strikes INTEGER NOT NULL
);
