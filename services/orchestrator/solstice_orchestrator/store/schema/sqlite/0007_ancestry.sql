-- What the pushes of a branch or change request tell of each other (ancestry.py); remembered beyond the end of their runs.

ALTER TABLE lineages ADD COLUMN commit_sha TEXT NOT NULL DEFAULT '';
ALTER TABLE lineages ADD COLUMN before_sha TEXT;
ALTER TABLE lineages ADD COLUMN asked_at REAL NOT NULL DEFAULT 0;
ALTER TABLE lineages ADD COLUMN lead INTEGER NOT NULL DEFAULT 0;  -- of the newest the greatest; 0: it never was the newest

UPDATE lineages SET commit_sha = told.commit_sha, before_sha = told.before_sha, asked_at = told.created_at
FROM (
    SELECT runs.run_id, runs.created_at, json_extract(CAST(body AS TEXT), '$.commit_sha') AS commit_sha,
        json_extract(CAST(body AS TEXT), '$.before_sha') AS before_sha
    FROM runs JOIN requests USING (age)
) AS told WHERE told.run_id = lineages.run_id;
UPDATE lineages SET lead = places.place FROM (
    SELECT run_id, row_number() OVER (PARTITION BY lineage ORDER BY run_id) AS place FROM lineages WHERE NOT rerun
) AS places WHERE places.run_id = lineages.run_id;
