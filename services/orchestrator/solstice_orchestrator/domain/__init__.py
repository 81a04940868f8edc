"""States, reasons and transitions of jobs, and the statuses that report them. Pure."""
