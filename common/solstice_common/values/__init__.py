"""Owns values as people and programs write them: times, delays, patterns, URLs, references to secrets."""
