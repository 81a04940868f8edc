-- How long it took until the container or VM of an attempt was ready for its first step; null: it had none.
ALTER TABLE attempts ADD COLUMN provisioning_seconds REAL;
ALTER TABLE jobs ADD COLUMN provisioning_seconds REAL;
-- When that began for the running attempt, while it takes longer than a moment; one before its start is of an earlier attempt.
ALTER TABLE jobs ADD COLUMN provisioning_since REAL;
