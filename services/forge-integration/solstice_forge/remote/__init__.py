"""The forges as we call them: one module per forge that says how, one client that does."""
