"""Decides what an event asks for, by the rules of its source. Pure."""
