-- Purging a run takes with it the other request ids that asked for it. Few requests have any.

CREATE INDEX request_aliases_by_run ON request_aliases (run_id);
