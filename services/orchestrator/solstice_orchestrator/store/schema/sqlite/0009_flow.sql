-- How fast jobs may start (rates.py), and what a worker takes of its slots under pressure (governor.py, concurrency.py).

CREATE TABLE start_buckets (
    scope   TEXT NOT NULL,  -- label, repository
    name    TEXT NOT NULL,
    amount  REAL NOT NULL,  -- tokens
    at      REAL NOT NULL,  -- when there were so many
    full_at REAL NOT NULL,  -- a full one needs no row
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

ALTER TABLE workers ADD COLUMN shrunk_to INTEGER;                        -- jobs at once for now; null: slot_limit
ALTER TABLE workers ADD COLUMN refuses TEXT;                             -- the resource for want of which it starts nothing
ALTER TABLE workers ADD COLUMN refusal TEXT NOT NULL DEFAULT '';         -- a sentence about that
