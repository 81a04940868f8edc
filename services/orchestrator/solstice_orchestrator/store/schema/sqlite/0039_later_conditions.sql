-- What is left of a job's condition until the jobs that it needs have ended; empty: nothing.

ALTER TABLE jobs ADD COLUMN later TEXT NOT NULL DEFAULT '';
