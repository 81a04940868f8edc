"""Fills the workspace of a job with the commit and its submodules."""
