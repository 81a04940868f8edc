"""The commands that call an orchestrator or a broker, one module each."""
