"""Runs git for planning and executors: fetches, checkouts, limits and the policy for hosts."""
