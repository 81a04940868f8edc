-- Published requests whose spans no OpenTelemetry collector has taken yet; empty while nothing is traced.
CREATE TABLE request_traces (
    row_id INTEGER PRIMARY KEY REFERENCES deliveries (row_id) ON DELETE CASCADE,
    stored_at REAL,                    -- when its webhook was answered; NULL where the process did not live to say
    sent_at REAL NOT NULL,             -- when the relay began to publish it
    confirmed_at REAL NOT NULL,
    taken_until REAL NOT NULL DEFAULT 0
);
