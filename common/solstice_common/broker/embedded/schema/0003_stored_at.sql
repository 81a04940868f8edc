-- When this queue got the message, seconds since the epoch. NULL: stored by an older version.
ALTER TABLE messages ADD COLUMN stored_at REAL;
