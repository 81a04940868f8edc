-- Runs whose spans no OpenTelemetry collector has taken yet; empty while nothing is traced.
CREATE TABLE run_traces (
    run_id      text COLLATE "C" PRIMARY KEY,
    taken_until double precision NOT NULL DEFAULT 0
);
