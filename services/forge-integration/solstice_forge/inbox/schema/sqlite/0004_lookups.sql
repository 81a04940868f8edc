-- What lacks something that only the forge can tell: it becomes a request once the forge was asked.
CREATE TABLE lookups (
    row_id INTEGER PRIMARY KEY REFERENCES deliveries (row_id) ON DELETE CASCADE,
    content_key TEXT NOT NULL UNIQUE,
    request_id TEXT NOT NULL,
    due_at REAL,                       -- when to ask (again); NULL once it is settled
    attempts INTEGER NOT NULL DEFAULT 0,
    last_failure TEXT,
    event TEXT NOT NULL
);

CREATE INDEX lookups_due ON lookups (due_at) WHERE due_at IS NOT NULL;
