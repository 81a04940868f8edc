"""What runs a claimed attempt: executors, workspaces, logs, masking and the load of the machine."""
