"""Which run makes way for a newer one, and who holds a concurrency group. Pure."""
