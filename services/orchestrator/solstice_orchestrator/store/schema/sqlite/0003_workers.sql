-- Workers say what they are, and how they stand outlives their processes: what people ordered, failures in a row, and
-- until when they are left alone (workers.py, quarantine.py).

ALTER TABLE workers ADD COLUMN name TEXT NOT NULL DEFAULT '';            -- empty for one that never registered
ALTER TABLE workers ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN slots TEXT NOT NULL DEFAULT '{}';         -- JSON: numbers by label
ALTER TABLE workers ADD COLUMN slot_limit INTEGER NOT NULL DEFAULT 0;    -- over all labels
ALTER TABLE workers ADD COLUMN ordered TEXT NOT NULL DEFAULT 'work';     -- work, pause, drain
ALTER TABLE workers ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;      -- in a row, for want of what jobs need
ALTER TABLE workers ADD COLUMN quarantined_until REAL;
ALTER TABLE workers ADD COLUMN ended_at REAL;                            -- when it took its leave
