-- Columns and a table by the names that the code has for them.
ALTER TABLE statuses RENAME COLUMN kept_at TO stored_at;
ALTER TABLE statuses RENAME COLUMN told_at TO reported_at;
ALTER TABLE statuses RENAME COLUMN told_state TO reported_state;
UPDATE statuses SET phase = 'reported' WHERE phase = 'told';
ALTER TABLE letters RENAME TO dead_letters;
