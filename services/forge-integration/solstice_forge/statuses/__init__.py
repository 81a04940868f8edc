"""What became of jobs, told to the forges: in order, only the newest, never twice, however often we die."""
