"""The schemas of the inbox, one for each database."""
