-- Published requests whose spans no OpenTelemetry collector has taken yet; empty while nothing is traced.
CREATE TABLE inbox_request_traces (
    row_id bigint PRIMARY KEY,
    stored_at double precision,        -- when its webhook was answered; NULL where the process did not live to say
    sent_at double precision NOT NULL, -- when the relay began to publish it
    confirmed_at double precision NOT NULL,
    taken_until double precision NOT NULL DEFAULT 0
);
