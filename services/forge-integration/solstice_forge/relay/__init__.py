"""Publishes the inbox's requests to the broker, with confirms."""
