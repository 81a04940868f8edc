-- A column by the name that the code has for it: the run has acquired its concurrency group.
ALTER TABLE runs RENAME COLUMN group_held TO group_acquired;
