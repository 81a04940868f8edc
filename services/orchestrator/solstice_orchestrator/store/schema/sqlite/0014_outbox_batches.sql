-- The statuses of one transaction lie in one row (parcels.py). What was there stays as it is: a row of one message.

ALTER TABLE outbox ADD COLUMN messages INTEGER NOT NULL DEFAULT 1; -- how many are in the row
