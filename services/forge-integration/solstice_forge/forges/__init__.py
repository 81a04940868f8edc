"""Verifies and parses the webhooks of each forge. Pure."""
