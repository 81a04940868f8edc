-- When a worker told of the pressure that it is under.

ALTER TABLE workers ADD COLUMN condition_at double precision; -- null: never, or an older version told
