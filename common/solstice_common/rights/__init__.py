"""The rights that each role needs at the broker, as tables."""
