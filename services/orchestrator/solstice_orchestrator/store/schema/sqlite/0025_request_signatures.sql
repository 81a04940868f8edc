-- Who signed a request: its dead letter carries it, too. Requests that need not be signed have none.
CREATE TABLE request_signatures (
    run_id TEXT PRIMARY KEY,
    signature TEXT NOT NULL
) STRICT, WITHOUT ROWID;
