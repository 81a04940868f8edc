-- Which jobs a worker's failures in a row were of: they do not go first after its quarantine (quarantine.py).

ALTER TABLE workers ADD COLUMN causes TEXT NOT NULL DEFAULT '[]'; -- JSON: repository, name and id of each
