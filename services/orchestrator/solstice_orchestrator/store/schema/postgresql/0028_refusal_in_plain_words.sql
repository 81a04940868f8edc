-- What PostgreSQL's own log says when a statement undoes itself (0015).
CREATE OR REPLACE FUNCTION only_if(as_expected boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF as_expected IS NOT TRUE THEN
        RAISE EXCEPTION 'a row was changed by another process since it was read' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
