-- Ends of attempts are written in one statement, which knows what it changes without having read it (ending.py).

-- A statement that finds something else there than it was made for undoes itself, as PostgreSQL undoes one that met another.
CREATE FUNCTION only_if(as_expected boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF as_expected IS NOT TRUE THEN
        RAISE EXCEPTION 'somebody has changed what this statement was made for' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- Room for the two versions that follow a job's first, and for the one that follows a run's: with less, full pages are
-- searched for versions that are over, through the table, which was a twentieth of what a start and an end cost here.
ALTER INDEX jobs_pkey SET (fillfactor = 30);
ALTER INDEX jobs_run_id_position_key SET (fillfactor = 30);
ALTER INDEX runs_pkey SET (fillfactor = 45);
