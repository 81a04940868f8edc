"""The values that rows of the store become. Pure."""
