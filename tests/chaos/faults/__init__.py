"""Both services under a seeded schedule of faults, with an audit of their promises."""
