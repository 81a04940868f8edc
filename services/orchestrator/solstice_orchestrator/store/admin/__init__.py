"""An operator's work on a whole store: check it, move it, record a trace."""
