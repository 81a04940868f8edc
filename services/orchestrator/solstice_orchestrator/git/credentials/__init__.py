"""Lets git use hosts and proxies whose credentials git must not see."""
