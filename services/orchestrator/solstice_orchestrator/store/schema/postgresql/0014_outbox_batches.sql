-- The statuses of one transaction lie in one row (parcels.py). What was there stays as it is: a row of one message.

ALTER TABLE outbox ADD COLUMN messages integer NOT NULL DEFAULT 1; -- how many are in the row
-- They are compressed already, and fit on a page: elsewhere they would be cut into rows again.
ALTER TABLE outbox ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE outbox SET (toast_tuple_target = 8160);

-- Jobs and runs leave a version behind them when they start and when they end, and each version has a place in these
-- indexes: room for it, as their tables have, so that no full page has to be searched for versions that are over.
ALTER INDEX jobs_pkey SET (fillfactor = 40);
ALTER INDEX jobs_run_id_position_key SET (fillfactor = 40);
ALTER INDEX runs_pkey SET (fillfactor = 60);
