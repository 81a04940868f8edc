CREATE TABLE exchanges (
    name TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('direct', 'fanout'))
);

CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    arguments TEXT NOT NULL  -- JSON, keys sorted
);

CREATE TABLE bindings (
    exchange TEXT NOT NULL REFERENCES exchanges (name),
    routing_key TEXT NOT NULL,
    queue_id INTEGER NOT NULL REFERENCES queues (queue_id),
    PRIMARY KEY (exchange, routing_key, queue_id)
) WITHOUT ROWID;

-- A process (one opened broker). It lives as long as somebody holds the lock of the file `token`.lock.
CREATE TABLE owners (
    owner_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL
);

CREATE TABLE consumers (
    consumer_id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES owners (owner_id),
    queue TEXT NOT NULL  -- a name: a consumer may wait for its queue to be declared
);
CREATE INDEX consumers_of_owner ON consumers (owner_id);

-- One row for each queue that a message reached; the order of `message` is the order of the queue. A row is written
-- once and not touched again until it is deleted, unless it came back.
CREATE TABLE messages (
    message INTEGER PRIMARY KEY,
    queue_id INTEGER REFERENCES queues (queue_id),  -- NULL: a dead letter that waits for a queue to be bound
    returned INTEGER NOT NULL DEFAULT 0,  -- how often it came back unsettled or requeued
    exchange TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    message_id TEXT,
    type TEXT,
    correlation_id TEXT,
    headers TEXT NOT NULL,  -- JSON
    priority INTEGER,
    published_at REAL NOT NULL,  -- the property `timestamp`, seconds since the epoch
    content_type TEXT NOT NULL,
    app_id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX messages_of_queue ON messages (queue_id, message);

-- Delivered and not settled. A message without a row here is ready.
CREATE TABLE unsettled (
    message INTEGER PRIMARY KEY REFERENCES messages (message) ON DELETE CASCADE,
    consumer_id INTEGER NOT NULL REFERENCES consumers (consumer_id)
);
CREATE INDEX unsettled_of_consumer ON unsettled (consumer_id);
