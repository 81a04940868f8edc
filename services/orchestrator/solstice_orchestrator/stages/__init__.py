"""The orchestrator's loops, one module each, from intake to retention."""
