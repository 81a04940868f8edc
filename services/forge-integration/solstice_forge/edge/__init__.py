"""The HTTP side: webhooks in, one JSON sentence out."""
