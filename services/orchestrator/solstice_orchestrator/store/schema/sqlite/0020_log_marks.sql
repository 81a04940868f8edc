-- Which pieces of a log the orchestrator wrote, not the job.

-- Not a column of log_chunks: an older orchestrator beside us fills that table without naming its columns.
CREATE TABLE log_marks (
    job_id   TEXT NOT NULL,
    attempt  INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    kind     TEXT NOT NULL, -- mark
    PRIMARY KEY (job_id, attempt, sequence)
) WITHOUT ROWID;

-- Also when an older orchestrator removes the job.
CREATE TRIGGER log_marks_go AFTER DELETE ON jobs BEGIN
    DELETE FROM log_marks WHERE job_id = OLD.job_id;
END;
