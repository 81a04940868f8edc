-- What a commit shall show: one row for each context of each commit, the newest status only. The columns are
-- explained in the schema on SQLite.
CREATE TABLE forge_statuses (
    row_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_name text NOT NULL,
    repository text NOT NULL,
    commit_sha text NOT NULL,
    context text NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    revision bigint NOT NULL,
    state text NOT NULL,
    final boolean NOT NULL,
    request_id text NOT NULL,
    body bytea NOT NULL,
    kept_at float8 NOT NULL,
    phase text NOT NULL DEFAULT 'pending',
    next_at float8 NOT NULL,
    failures integer NOT NULL DEFAULT 0,
    failing_since float8,
    last_failure text NOT NULL DEFAULT '',
    calls integer NOT NULL DEFAULT 0,
    told_at float8,
    told_state text NOT NULL DEFAULT '',
    check_id bigint,
    check_run_id text NOT NULL DEFAULT '',
    flying_since float8,
    flying text NOT NULL DEFAULT '',
    unsure text NOT NULL DEFAULT '',
    unsure_until float8 NOT NULL DEFAULT 0,
    UNIQUE (source_name, repository, commit_sha, context)
);

CREATE INDEX forge_statuses_due ON forge_statuses (source_name, next_at)
    WHERE phase = 'pending' AND flying_since IS NULL;
CREATE INDEX forge_statuses_pending ON forge_statuses (row_id) WHERE phase = 'pending';
CREATE INDEX forge_statuses_flying ON forge_statuses (flying_since) WHERE flying_since IS NOT NULL;
CREATE INDEX forge_statuses_settled ON forge_statuses (kept_at) WHERE phase <> 'pending';
CREATE INDEX forge_statuses_of_request ON forge_statuses (request_id);

CREATE TABLE forge_status_letters (
    row_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id text NOT NULL,
    body bytea NOT NULL,
    headers text NOT NULL
);

CREATE TABLE forge_status_limits (
    source_name text PRIMARY KEY,
    not_before float8 NOT NULL,
    paced_until float8 NOT NULL,
    strikes integer NOT NULL
);
