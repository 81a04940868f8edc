-- Columns and a table by the names that the code has for them.
ALTER TABLE forge_statuses RENAME COLUMN kept_at TO stored_at;
ALTER TABLE forge_statuses RENAME COLUMN told_at TO reported_at;
ALTER TABLE forge_statuses RENAME COLUMN told_state TO reported_state;
UPDATE forge_statuses SET phase = 'reported' WHERE phase = 'told';
ALTER TABLE forge_status_letters RENAME TO forge_status_dead_letters;
