-- How long it took until the container or VM of an attempt was ready for its first step; null: it had none.
ALTER TABLE attempts ADD COLUMN provisioning_seconds double precision;
ALTER TABLE jobs ADD COLUMN provisioning_seconds double precision;
-- When that began for the running attempt, while it takes longer than a moment; one before its start is of an earlier attempt.
ALTER TABLE jobs ADD COLUMN provisioning_since double precision;
