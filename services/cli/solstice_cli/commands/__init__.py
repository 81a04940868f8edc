"""The commands that ask an orchestrator or a broker something, one module each."""
