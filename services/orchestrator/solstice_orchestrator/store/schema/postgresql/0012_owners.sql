-- Jobs know whose their repository is (quotas.py), and what an owner has started in the last hour is counted.

ALTER TABLE jobs ADD COLUMN owner text NOT NULL DEFAULT '';    -- what stands before the first / of its repository
UPDATE jobs SET owner = coalesce(
    CASE
        WHEN repository NOT LIKE '%://%' THEN substring(repository FROM '^([^/]+)/')
        WHEN lower(repository) NOT LIKE 'file:%' THEN substring(repository FROM '^[^:/]+://[^/]*/([^/]+)/')
    END, '');

CREATE TABLE owner_starts (
    owner  text COLLATE "C" NOT NULL,
    until  double precision NOT NULL,     -- they count until then
    starts integer NOT NULL,
    PRIMARY KEY (owner, until)
);
