-- A table and columns by the names that the code has for them.
ALTER TABLE lineages RENAME TO ref_runs;
ALTER TABLE ref_runs RENAME COLUMN lineage TO ref_key;
ALTER INDEX lineages_by_key RENAME TO ref_runs_by_key;
ALTER INDEX lineages_pkey RENAME TO ref_runs_pkey;
ALTER TABLE cancels RENAME COLUMN kept_at TO stored_at;
