-- The last attempt of an ended job stands in the job's row alone where that says all of it (attempts.py): a row and an index
-- entry less for nearly every end. Nothing is to be moved; an older version, which would not find such attempts, does not
-- open this database any more.

COMMENT ON TABLE attempts IS 'Tries that are over, but for last ones of which the rows of their jobs say all.';
