-- Which change request a run is of (cancels.py), and what of it was cancelled.

ALTER TABLE requests ADD COLUMN change_key text COLLATE "C";
-- A request with escapes may hold what PostgreSQL takes for no JSON, and stays without.
UPDATE requests SET change_key = concat(told.body ->> 'source', ' ', told.body ->> 'repo_url',
        ' #', told.body ->> 'change_number')
    FROM (SELECT run_id, CASE WHEN position('\x5c75'::bytea IN body) = 0
        THEN convert_from(body, 'UTF8')::json END AS body FROM requests) AS told
    WHERE told.run_id = requests.run_id AND told.body ->> 'change_number' IS NOT NULL;
-- By hash: an address may be longer than what fits into a B-tree.
CREATE INDEX requests_by_change ON requests USING hash (change_key) WHERE change_key IS NOT NULL;

-- The latest wish of a change request: it ends what was asked for before, also what comes after it.
CREATE TABLE cancels (
    change_key text COLLATE "C" NOT NULL,
    asked_at   double precision NOT NULL,
    detail     text NOT NULL,                        -- who wanted it
    kept_at    double precision NOT NULL,
    EXCLUDE USING hash (change_key WITH =)
);
