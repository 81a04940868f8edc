-- Who signed a request: its dead letter carries it, too. Requests that need not be signed have none.
CREATE TABLE request_signatures (
    run_id text COLLATE "C" PRIMARY KEY,
    signature text NOT NULL
);
