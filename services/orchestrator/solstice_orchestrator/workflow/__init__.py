"""A workflow file becomes the jobs of a run. Pure."""
