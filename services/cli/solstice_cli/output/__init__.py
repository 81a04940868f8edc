"""How answers look on a terminal, in a pipe and as JSON."""
