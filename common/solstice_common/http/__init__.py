"""HTTP as both services serve it: one configuration of uvicorn, with bounds on what a stranger can make us hold."""
