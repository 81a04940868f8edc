-- Which change request a run is of (cancels.py), and what of it was cancelled.

ALTER TABLE runs ADD COLUMN change_key TEXT;
UPDATE runs SET change_key = (
    SELECT json_extract(told.body, '$.source') || ' ' || json_extract(told.body, '$.repo_url')
        || ' #' || json_extract(told.body, '$.change_number')
    FROM (SELECT CAST(body AS TEXT) AS body FROM requests WHERE requests.age = runs.age) AS told
);
CREATE INDEX runs_by_change ON runs (change_key) WHERE change_key IS NOT NULL;

-- The latest wish of a change request: it ends what was asked for before, also what comes after it.
CREATE TABLE cancels (
    change_key TEXT PRIMARY KEY NOT NULL,
    asked_at   REAL NOT NULL,
    detail     TEXT NOT NULL,           -- who wanted it
    kept_at    REAL NOT NULL
) WITHOUT ROWID;
