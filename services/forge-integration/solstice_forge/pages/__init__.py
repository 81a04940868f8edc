"""The pages of forge-integration: why a push was built, or was not.

Complete without JavaScript; there is none.
"""
