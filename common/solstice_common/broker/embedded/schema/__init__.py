"""The schema of the embedded broker's file, as numbered migrations."""
