"""When schedules are due: cron expressions and what becomes of their ticks. Pure."""
