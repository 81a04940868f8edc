-- Columns and an index by what they hold: the call that is under way, and a status that the forge may not have received yet.
ALTER TABLE statuses RENAME COLUMN flying_since TO call_started_at;
ALTER TABLE statuses RENAME COLUMN flying TO call_place;
ALTER TABLE statuses RENAME COLUMN unsure TO unconfirmed_place;
ALTER TABLE statuses RENAME COLUMN unsure_until TO unconfirmed_until;
DROP INDEX statuses_flying;
CREATE INDEX statuses_under_way ON statuses (call_started_at) WHERE call_started_at IS NOT NULL;
