"""Says who may call, and serves HTTP for both services."""
