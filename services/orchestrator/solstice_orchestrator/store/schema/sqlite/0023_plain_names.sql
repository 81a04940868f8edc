-- A table and columns by the names that the code has for them.
ALTER TABLE lineages RENAME TO ref_runs;
ALTER TABLE ref_runs RENAME COLUMN lineage TO ref_key;
DROP INDEX lineages_by_key;
CREATE INDEX ref_runs_by_key ON ref_runs (ref_key);
ALTER TABLE cancels RENAME COLUMN kept_at TO stored_at;
