-- Workers say what they are, and how they stand outlives their processes: what people ordered, failures in a row, and
-- until when they are left alone (workers.py, quarantine.py).

ALTER TABLE workers
    ADD COLUMN name text NOT NULL DEFAULT '',            -- empty for one that never registered
    ADD COLUMN host text NOT NULL DEFAULT '',
    ADD COLUMN version text NOT NULL DEFAULT '',
    ADD COLUMN slots text NOT NULL DEFAULT '{}',         -- JSON: numbers by label
    ADD COLUMN slot_limit integer NOT NULL DEFAULT 0,    -- over all labels
    ADD COLUMN ordered text NOT NULL DEFAULT 'work',     -- work, pause, drain
    ADD COLUMN failures integer NOT NULL DEFAULT 0,      -- in a row, for want of what jobs need
    ADD COLUMN quarantined_until double precision,
    ADD COLUMN ended_at double precision;                -- when it took its leave
