-- Tables and columns by the names that the code has for them.
ALTER TABLE swept RENAME TO sweep_cursor;
ALTER TABLE reconcile_read RENAME TO reconcile_cursor;
ALTER TABLE reconcile_hooks RENAME COLUMN looked_to TO read_to;
ALTER TABLE reconcile_asked RENAME TO reconcile_resends;
ALTER TABLE reconcile_resends RENAME COLUMN asked_at TO requested_at;
