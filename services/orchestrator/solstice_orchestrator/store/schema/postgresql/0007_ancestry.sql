-- What the pushes of a branch or change request tell of each other (ancestry.py); remembered beyond the end of their runs.

ALTER TABLE lineages
    ADD COLUMN commit_sha text NOT NULL DEFAULT '',
    ADD COLUMN before_sha text,
    ADD COLUMN asked_at double precision NOT NULL DEFAULT 0,
    ADD COLUMN lead integer NOT NULL DEFAULT 0;      -- of the newest the greatest; 0: it never was the newest

UPDATE lineages SET commit_sha = coalesce(told.body ->> 'commit_sha', ''), before_sha = told.body ->> 'before_sha',
        asked_at = told.created_at
    FROM (SELECT run_id, created_at, CASE WHEN position('\x5c75'::bytea IN body) = 0
        THEN convert_from(body, 'UTF8')::json END AS body FROM requests) AS told
    WHERE told.run_id = lineages.run_id;
UPDATE lineages SET lead = places.place FROM (
    SELECT run_id, row_number() OVER (PARTITION BY lineage ORDER BY run_id) AS place FROM lineages WHERE NOT rerun
) AS places WHERE places.run_id = lineages.run_id;
