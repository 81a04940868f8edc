"""The HTTP side: webhooks come in, one JSON sentence goes out."""
