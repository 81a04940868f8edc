-- How far bodies were removed: all deliveries up to this number.
CREATE TABLE swept (stripped_to INTEGER NOT NULL);
INSERT INTO swept VALUES (0);
