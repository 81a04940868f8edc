"""Why a job waits, for how long, and how many slots the queue needs. Pure."""
