"""Runs claimed attempts: executors, workspaces, logs, masking and the load of the machine."""
