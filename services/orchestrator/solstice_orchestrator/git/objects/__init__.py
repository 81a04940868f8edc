"""Objects of repositories: reads them, and keeps them for further checkouts."""
