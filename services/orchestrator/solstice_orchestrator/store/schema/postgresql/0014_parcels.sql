-- The statuses of one transaction lie in one row (parcels.py). What was there stays as it is: a row of one message.

ALTER TABLE outbox ADD COLUMN messages integer NOT NULL DEFAULT 1; -- how many are in the row
-- They are compressed already, and fit on a page: elsewhere they would be cut into rows again.
ALTER TABLE outbox ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE outbox SET (toast_tuple_target = 8160);
