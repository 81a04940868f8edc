"""Read the nodes of a job that name files: its artifacts and its caches. Pure."""
