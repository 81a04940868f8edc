"""Commands that say how far runs and jobs are, and what became of them."""
