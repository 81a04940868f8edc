-- What arrived. Written once, never changed; the wide columns stand last.
CREATE TABLE deliveries (
    row_id INTEGER PRIMARY KEY AUTOINCREMENT,
    source_name TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    event_name TEXT NOT NULL,
    received_at REAL NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    request_id TEXT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,                -- Zstandard frame (RFC 8878); empty for what asks for nothing
    UNIQUE (source_name, delivery_id)
);

-- What it asked for. Narrow beside the bodies, since these rows change when they are published.
CREATE TABLE requests (
    row_id INTEGER PRIMARY KEY REFERENCES deliveries (row_id),
    content_key TEXT NOT NULL UNIQUE,
    request_id TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    published INTEGER NOT NULL DEFAULT 0,
    last_failure TEXT,
    request BLOB NOT NULL
);

CREATE INDEX requests_pending ON requests (row_id) WHERE published = 0;
