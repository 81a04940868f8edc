"""Finds what a forge could not deliver, and makes up for it.

It reads the forge's own record of deliveries, or its heads.
"""
