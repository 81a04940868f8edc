"""Both services under a seeded schedule of faults, and an audit of what they promised."""
