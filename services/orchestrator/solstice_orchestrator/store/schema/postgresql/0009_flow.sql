-- How fast jobs may start (rates.py), and what a worker takes of its slots under pressure (governor.py, concurrency.py).

CREATE TABLE start_buckets (
    scope   text COLLATE "C" NOT NULL,  -- label, repository
    name    text COLLATE "C" NOT NULL,
    amount  double precision NOT NULL,  -- tokens
    at      double precision NOT NULL,  -- when there were so many
    full_at double precision NOT NULL,  -- a full one needs no row
    PRIMARY KEY (scope, name)
);

ALTER TABLE workers
    ADD COLUMN shrunk_to integer,                        -- jobs at once for now; null: slot_limit
    ADD COLUMN refuses text,                             -- the resource for want of which it starts nothing
    ADD COLUMN refusal text NOT NULL DEFAULT '';         -- a sentence about that
