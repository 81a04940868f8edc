"""What readers ask the SQLite store; nothing here changes anything."""
