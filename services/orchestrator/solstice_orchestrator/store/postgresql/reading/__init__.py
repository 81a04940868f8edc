"""What readers ask the PostgreSQL store; nothing here changes anything."""
