-- The image of the container in which an attempt ran, with its digest; empty when it ran in none.
ALTER TABLE attempts ADD COLUMN image TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN image TEXT NOT NULL DEFAULT '';
