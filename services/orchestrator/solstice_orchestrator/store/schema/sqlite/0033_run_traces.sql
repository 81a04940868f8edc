-- Runs whose spans no OpenTelemetry collector has taken yet; empty while nothing is traced.
CREATE TABLE run_traces (
    run_id      TEXT PRIMARY KEY NOT NULL,
    taken_until REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
