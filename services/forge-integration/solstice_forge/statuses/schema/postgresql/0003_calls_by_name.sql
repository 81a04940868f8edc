-- Columns and an index by what they hold: the call that is under way, and a status that the forge may not have received yet.
ALTER TABLE forge_statuses RENAME COLUMN flying_since TO call_started_at;
ALTER TABLE forge_statuses RENAME COLUMN flying TO call_place;
ALTER TABLE forge_statuses RENAME COLUMN unsure TO unconfirmed_place;
ALTER TABLE forge_statuses RENAME COLUMN unsure_until TO unconfirmed_until;
ALTER INDEX forge_statuses_flying RENAME TO forge_statuses_under_way;
