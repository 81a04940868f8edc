"""The loops of the orchestrator, one module each, from intake to retention."""
