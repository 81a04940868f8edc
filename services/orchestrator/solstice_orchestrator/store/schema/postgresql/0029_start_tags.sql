-- The place of a job in its queue by the name of start-time fair queueing (scheduling/order.py).
ALTER TABLE jobs RENAME COLUMN turn TO start_tag;
ALTER TABLE turns RENAME TO next_tags;
ALTER TABLE next_tags RENAME COLUMN next_turn TO next_tag;
ALTER INDEX turns_pkey RENAME TO next_tags_pkey;
