"""The steps of the schema on PostgreSQL."""
