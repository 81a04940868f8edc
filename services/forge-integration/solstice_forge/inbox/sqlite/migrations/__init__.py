"""The schema of the inbox, as numbered steps; a released step never changes."""
