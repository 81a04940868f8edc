"""The schemas of the statuses for forges, one for each database."""
