"""What an operator does with a store as a whole: check it, move it, record a trace from it."""
