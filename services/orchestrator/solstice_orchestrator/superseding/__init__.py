"""Which runs a newer run ends, and who holds a concurrency group. Pure."""
