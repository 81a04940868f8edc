"""The command lines of forge-integration."""
