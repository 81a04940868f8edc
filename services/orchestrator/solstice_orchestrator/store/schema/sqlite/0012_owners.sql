-- Jobs know whose their repository is (quotas.py), and what an owner has started in the last hour is counted.

ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';    -- what stands before the first / of its repository
UPDATE jobs SET owner = (
    WITH whole (name) AS (SELECT repository),
    -- Of a URL what follows its host; of a file's nothing.
    path (name) AS (
        SELECT CASE
            WHEN instr(name, '://') = 0 THEN name
            WHEN lower(name) LIKE 'file:%' THEN ''
            WHEN instr(substr(name, instr(name, '://') + 3), '/') = 0 THEN ''
            ELSE substr(name, instr(name, '://') + 3 + instr(substr(name, instr(name, '://') + 3), '/'))
        END FROM whole
    )
    SELECT substr(name, 1, max(0, instr(name, '/') - 1)) FROM path
);

CREATE TABLE owner_starts (
    owner  TEXT NOT NULL,
    until  REAL NOT NULL,     -- they count until then
    starts INTEGER NOT NULL,
    PRIMARY KEY (owner, until)
) WITHOUT ROWID;
