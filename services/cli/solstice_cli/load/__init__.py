"""Sends a mix of requests to a running system, and judges what became of them."""
