"""The store's schema, one file per step: `NNNN_what.sql`."""
