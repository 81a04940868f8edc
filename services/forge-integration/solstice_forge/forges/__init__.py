"""How webhooks of each forge are proven and read. Pure."""
