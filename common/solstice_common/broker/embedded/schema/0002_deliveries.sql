-- The table of deliveries that are not settled, by the name that the code has for them.
ALTER TABLE unsettled RENAME TO deliveries;
DROP INDEX unsettled_of_consumer;
CREATE INDEX deliveries_of_consumer ON deliveries (consumer_id);
