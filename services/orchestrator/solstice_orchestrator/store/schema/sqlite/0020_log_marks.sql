-- Which pieces of a log the orchestrator wrote, not the job.

ALTER TABLE log_chunks ADD COLUMN kind TEXT; -- mark; null: output of the job, or an older version wrote it
