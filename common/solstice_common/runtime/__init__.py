"""What both services run on: the process, backoff, pauses, batches and notifications."""
