"""What a job is and may become: states, reasons, transitions, and what is said of them. Pure."""
