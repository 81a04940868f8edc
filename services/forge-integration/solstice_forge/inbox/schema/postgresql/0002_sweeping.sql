-- How far bodies were removed: all deliveries up to this number.
CREATE TABLE inbox_swept (stripped_to bigint NOT NULL);
INSERT INTO inbox_swept VALUES (0);
