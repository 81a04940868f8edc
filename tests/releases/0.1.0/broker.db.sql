BEGIN TRANSACTION;
CREATE TABLE bindings (
    exchange TEXT NOT NULL REFERENCES exchanges (name),
    routing_key TEXT NOT NULL,
    queue_id INTEGER NOT NULL REFERENCES queues (queue_id),
    PRIMARY KEY (exchange, routing_key, queue_id)
) WITHOUT ROWID;
INSERT INTO "bindings" VALUES('solstice.cancels','jobcancel.v1',3);
INSERT INTO "bindings" VALUES('solstice.cancels.dlx','',4);
INSERT INTO "bindings" VALUES('solstice.dlx','',2);
INSERT INTO "bindings" VALUES('solstice.jobs','jobrequest.v1',1);
INSERT INTO "bindings" VALUES('solstice.statuses','jobstatus.v1',5);
INSERT INTO "bindings" VALUES('solstice.statuses.dlx','',6);
CREATE TABLE consumers (
    consumer_id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id INTEGER NOT NULL REFERENCES owners (owner_id),
    queue TEXT NOT NULL  -- a name: a consumer may wait for its queue to be declared
);
CREATE TABLE "deliveries" (
    message INTEGER PRIMARY KEY REFERENCES messages (message) ON DELETE CASCADE,
    consumer_id INTEGER NOT NULL REFERENCES consumers (consumer_id)
);
CREATE TABLE exchanges (
    name TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('direct', 'fanout'))
);
INSERT INTO "exchanges" VALUES('solstice.jobs','direct');
INSERT INTO "exchanges" VALUES('solstice.dlx','fanout');
INSERT INTO "exchanges" VALUES('solstice.cancels','direct');
INSERT INTO "exchanges" VALUES('solstice.cancels.dlx','fanout');
INSERT INTO "exchanges" VALUES('solstice.statuses','direct');
INSERT INTO "exchanges" VALUES('solstice.statuses.dlx','fanout');
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
, stored_at REAL);
INSERT INTO "messages" VALUES(1,1,0,'solstice.jobs','jobrequest.v1','93dea64e-0b59-406a-aaa3-19073fe1be13','jobrequest.v1',NULL,'{}',NULL,1.79585645481494593622e+09,'application/json','solstice-ci',X'7B22636F6D6D69745F736861223A2263666538383339633161616633313962636634313530613036666563333133333066663931373138222C2264656C69766572795F6964223A22696E20746865207175657565222C226576656E74223A2270757368222C22726566223A22726566732F68656164732F696E2D7468652D7175657565222C227265706F5F66756C6C5F6E616D65223A22686172626F75722F6C69676874686F757365222C227265706F5F75726C223A22687474703A2F2F666F7267652E6578616D706C652F686172626F75722F6C69676874686F7573652E676974222C22726571756573745F6964223A2239383737373166342D336166642D356639652D613764332D656361623665303961303830222C22736368656D615F76657273696F6E223A226A6F62726571756573742E7631222C22736F75726365223A22666F7267656A6F222C22736F757263655F6E616D65223A22666F7267656A6F222C227375626D69747465645F6174223A22323032362D31312D32365432303A30303A30302E3030305A222C2274727573746564223A747275657D',1.79585645481499147409e+09);
INSERT INTO "messages" VALUES(2,2,0,'solstice.dlx','jobrequest.v1','21526845-4bec-4c7a-abd3-2f66bb8f238b','?',NULL,'{"x-solstice-reason": "invalid_message", "x-solstice-detail": "no JSON", "x-solstice-queue": "solstice.jobs.v1"}',NULL,1.79585645481495594978e+09,'application/json','solstice-ci',X'6E6F204A534F4E',1.79585645481499147409e+09);
CREATE TABLE owners (
    owner_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL
);
CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    arguments TEXT NOT NULL  -- JSON, keys sorted
);
INSERT INTO "queues" VALUES(1,'solstice.jobs.v1','{"x-dead-letter-exchange": "solstice.dlx", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-type": "quorum"}');
INSERT INTO "queues" VALUES(2,'solstice.jobs.v1.dlq','{"x-queue-type": "quorum"}');
INSERT INTO "queues" VALUES(3,'solstice.cancels.v1','{"x-dead-letter-exchange": "solstice.cancels.dlx", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-type": "quorum"}');
INSERT INTO "queues" VALUES(4,'solstice.cancels.v1.dlq','{"x-queue-type": "quorum"}');
INSERT INTO "queues" VALUES(5,'solstice.statuses.v1','{"x-dead-letter-exchange": "solstice.statuses.dlx", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-queue-type": "quorum"}');
INSERT INTO "queues" VALUES(6,'solstice.statuses.v1.dlq','{"x-queue-type": "quorum"}');
CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, checksum TEXT NOT NULL, applied_at REAL NOT NULL);
INSERT INTO "schema_migrations" VALUES(1,'7c56441eb4fa826fdb611242129c42de5873ef240f633112aca74d0db8aec9b2',1.79585645480200934405e+09);
INSERT INTO "schema_migrations" VALUES(2,'24593a9f380eb8b5e5f5a4e198e922c7f3da468e0ad17813392e8f6ec97af8f1',1.79585645480260300633e+09);
INSERT INTO "schema_migrations" VALUES(3,'12449b1d12454b6eaa6d8a3c573a6a325cc1cd2bc3d687868d3660e2d85288c2',1.79585645480274891851e+09);
CREATE INDEX consumers_of_owner ON consumers (owner_id);
CREATE INDEX messages_of_queue ON messages (queue_id, message);
CREATE INDEX deliveries_of_consumer ON deliveries (consumer_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('owners',1);
COMMIT;
