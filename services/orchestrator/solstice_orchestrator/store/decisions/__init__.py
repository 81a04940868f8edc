"""What each change of the store decides, given the rows that it loaded. Pure."""
