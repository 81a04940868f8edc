-- Further contents of a delivery that we made ourselves: what the forge would have called it is not known.
CREATE TABLE aliases (
    content_key TEXT PRIMARY KEY,
    row_id INTEGER NOT NULL REFERENCES deliveries (row_id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX aliases_of ON aliases (row_id);
CREATE TRIGGER requests_under_another_name BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM aliases WHERE content_key = NEW.content_key) BEGIN SELECT RAISE(IGNORE); END;

-- Who compares a source with its forge, until when nobody else does, and what came of the last time.
CREATE TABLE reconcile_rounds (
    source_name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    held_until REAL NOT NULL,
    ended_at REAL,
    report TEXT
);

-- What the log says of repositories and their refs, up to a delivery of this number.
CREATE TABLE reconcile_read (read_to INTEGER NOT NULL);
INSERT INTO reconcile_read VALUES (0);
CREATE TABLE reconcile_kinds (
    source_name TEXT NOT NULL,
    repo_full_name TEXT NOT NULL,
    kind TEXT NOT NULL,                -- of event; '' for anything at all
    compared INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source_name, repo_full_name, kind)
) WITHOUT ROWID;
CREATE TABLE reconcile_heads (
    source_name TEXT NOT NULL,
    repo_full_name TEXT NOT NULL,
    ref TEXT NOT NULL,
    commit_sha TEXT NOT NULL,
    known_at REAL NOT NULL,
    PRIMARY KEY (source_name, repo_full_name, ref)
) WITHOUT ROWID;

-- How far each hook's deliveries were looked through, and which the forge was asked to send again.
CREATE TABLE reconcile_hooks (
    source_name TEXT NOT NULL,
    hook TEXT NOT NULL,
    looked_to REAL NOT NULL,
    PRIMARY KEY (source_name, hook)
) WITHOUT ROWID;
CREATE TABLE reconcile_asked (
    source_name TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    times INTEGER NOT NULL,
    asked_at REAL NOT NULL,
    PRIMARY KEY (source_name, delivery_id)
) WITHOUT ROWID;
