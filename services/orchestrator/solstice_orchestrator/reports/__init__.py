"""What the test reports of jobs say: read, counted and compared. Pure, except for `__main__`."""
