-- Further contents of a delivery that we made ourselves: what the forge would have called it is not known.
CREATE TABLE inbox_aliases (
    content_key text COLLATE "C" PRIMARY KEY,
    row_id bigint NOT NULL
);
CREATE INDEX inbox_aliases_of ON inbox_aliases (row_id);

-- Who compares a source with its forge, until when nobody else does, and what came of the last time.
CREATE TABLE inbox_reconcile_rounds (
    source_name text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    held_until double precision NOT NULL,
    ended_at double precision,
    report text
);

-- What the log says of repositories and their refs, up to a delivery of this number.
CREATE TABLE inbox_reconcile_read (read_to bigint NOT NULL);
INSERT INTO inbox_reconcile_read VALUES (0);
CREATE TABLE inbox_reconcile_kinds (
    source_name text COLLATE "C" NOT NULL,
    repo_full_name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,    -- of event; '' for anything at all
    compared integer NOT NULL DEFAULT 0,
    PRIMARY KEY (source_name, repo_full_name, kind)
);
CREATE TABLE inbox_reconcile_heads (
    source_name text COLLATE "C" NOT NULL,
    repo_full_name text COLLATE "C" NOT NULL,
    ref text COLLATE "C" NOT NULL,
    commit_sha text NOT NULL,
    known_at double precision NOT NULL,
    PRIMARY KEY (source_name, repo_full_name, ref)
);

-- How far each hook's deliveries were looked through, and which the forge was asked to send again.
CREATE TABLE inbox_reconcile_hooks (
    source_name text COLLATE "C" NOT NULL,
    hook text COLLATE "C" NOT NULL,
    looked_to double precision NOT NULL,
    PRIMARY KEY (source_name, hook)
);
CREATE TABLE inbox_reconcile_asked (
    source_name text COLLATE "C" NOT NULL,
    delivery_id text COLLATE "C" NOT NULL,
    times integer NOT NULL,
    asked_at double precision NOT NULL,
    PRIMARY KEY (source_name, delivery_id)
);
