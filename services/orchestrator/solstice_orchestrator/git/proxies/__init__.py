"""Lets git use a proxy whose user and password git must not see."""
