"""Read a workflow file and plan the jobs of a run. Pure."""
