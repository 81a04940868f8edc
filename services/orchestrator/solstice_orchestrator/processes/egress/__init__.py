"""Connects untrusted jobs with the hosts that the operator allows them, and with no others."""
