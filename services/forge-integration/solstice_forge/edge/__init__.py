"""Receives webhooks over HTTP, and answers each with one JSON sentence."""
