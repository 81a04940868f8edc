"""When schedules are due, and which of their ticks fire. Pure."""
