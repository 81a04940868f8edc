-- The inbox. Its names begin with inbox_: a database may be shared with the orchestrators' store.
CREATE SEQUENCE inbox_row_ids AS bigint;

-- What arrived; the wide columns stand last.
CREATE TABLE inbox_deliveries (
    row_id bigint PRIMARY KEY,
    received_at double precision NOT NULL,
    source_name text COLLATE "C" NOT NULL,
    delivery_id text COLLATE "C" NOT NULL,
    event_name text NOT NULL,
    repo_full_name text COLLATE "C",
    reason text NOT NULL,
    detail text NOT NULL,
    request_id text,
    headers text NOT NULL,
    body bytea NOT NULL,               -- Zstandard frame (RFC 8878); empty for what asks for nothing
    UNIQUE (source_name, delivery_id)
);
ALTER TABLE inbox_deliveries ALTER COLUMN body SET STORAGE EXTERNAL;

-- What it asked for. Narrow beside the bodies, since these rows change when they are published.
CREATE TABLE inbox_requests (
    row_id bigint PRIMARY KEY,
    content_key text COLLATE "C" NOT NULL UNIQUE,
    request_id text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    published boolean NOT NULL DEFAULT false,
    last_failure text,
    request bytea NOT NULL
);
CREATE INDEX inbox_requests_pending ON inbox_requests (row_id) WHERE NOT published;

-- Copies of what was kept before, numbered in one sequence with the deliveries.
CREATE TABLE inbox_repeats (
    row_id bigint PRIMARY KEY,
    received_at double precision NOT NULL,
    repeats bigint,                    -- the delivery's row_id; it may be gone
    source_name text COLLATE "C" NOT NULL,
    delivery_id text COLLATE "C" NOT NULL,
    event_name text NOT NULL,
    repo_full_name text COLLATE "C",
    reason text NOT NULL,
    request_id text
);
CREATE INDEX inbox_repeats_of ON inbox_repeats (repeats, row_id);
CREATE INDEX inbox_repeats_by_id ON inbox_repeats (delivery_id);

-- What lacks something that only the forge can tell: it becomes a request once the forge was asked.
CREATE TABLE inbox_lookups (
    row_id bigint PRIMARY KEY,
    content_key text COLLATE "C" NOT NULL UNIQUE,
    request_id text NOT NULL,
    due_at double precision,           -- when to ask (again); NULL once it is settled
    attempts integer NOT NULL DEFAULT 0,
    last_failure text,
    event text NOT NULL
);
CREATE INDEX inbox_lookups_due ON inbox_lookups (due_at) WHERE due_at IS NOT NULL;
