-- Tables and columns by the names that the code has for them.
ALTER TABLE inbox_swept RENAME TO inbox_sweep_cursor;
ALTER TABLE inbox_reconcile_read RENAME TO inbox_reconcile_cursor;
ALTER TABLE inbox_reconcile_hooks RENAME COLUMN looked_to TO read_to;
ALTER TABLE inbox_reconcile_asked RENAME TO inbox_reconcile_resends;
ALTER TABLE inbox_reconcile_resends RENAME COLUMN asked_at TO requested_at;
ALTER INDEX inbox_reconcile_asked_pkey RENAME TO inbox_reconcile_resends_pkey;
