"""Dead letters for people: read, choose, count, replay, drop, export and import."""
