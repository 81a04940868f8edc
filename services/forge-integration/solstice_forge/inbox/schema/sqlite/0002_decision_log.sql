-- Whose repository a delivery is about, for those who look for it.
ALTER TABLE deliveries ADD COLUMN repo_full_name TEXT;
UPDATE deliveries SET repo_full_name = (
    SELECT json_extract(CAST(requests.request AS TEXT), '$.repo_full_name') FROM requests WHERE requests.row_id = deliveries.row_id
) WHERE request_id IS NOT NULL;

-- Copies of what was kept before. Narrow, and numbered in one sequence with the deliveries.
CREATE TABLE repeats (
    row_id INTEGER PRIMARY KEY,
    source_name TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    event_name TEXT NOT NULL,
    received_at REAL NOT NULL,
    repo_full_name TEXT,
    reason TEXT NOT NULL,
    repeats INTEGER,                   -- the delivery's row_id; it may be gone
    request_id TEXT
);

CREATE INDEX repeats_of ON repeats (repeats, row_id);
CREATE INDEX repeats_by_id ON repeats (delivery_id);
