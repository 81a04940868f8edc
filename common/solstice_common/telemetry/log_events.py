"""Every log event of the code that both services share, with its fields."""

from enum import StrEnum


class LogEvent(StrEnum):
    """A fact in the past tense."""

    BROKER_CONNECTED = "broker.connected"
    """A connection to the broker was made: url, connection, host."""
    BROKER_DISCONNECTED = "broker.disconnected"
    """A connection to the broker was lost or could not be made, and is tried again, at the next host: url, connection, host, detail, retry_in."""
    BROKER_MISMATCHED = "broker.topology_mismatched"
    """After a reconnect, an object differs from its declaration: kind, name, detail. Only its own consumer
    stops.
    """
    RIGHT_MISSING = "broker.right_missing"
    """The user of the broker may not do something, which is tried again until an operator grants it: user, right,
    target (the object), operation, remedy.
    """
    BROKER_DEGRADED = "broker.degraded"
    """The broker is ready, but less durable than it could be: url, detail (with the setting to change)."""
    BROKER_BLOCKED = "broker.blocked"
    """The broker accepts no messages, or may be given none: url, detail (with the setting to change)."""
    BROKER_FILE_FAILED = "broker.file_failed"
    """The embedded broker's file cannot be read or written: url, detail."""
    BROKER_FILE_RECOVERED = "broker.file_recovered"
    """The embedded broker's file can be used again: url."""
    BROKER_OWNER_LOST = "broker.owner_lost"
    """A process died while it held messages; other processes get them: url, queue (where each has its own), owner, returned."""
    BROKER_AWAITED = "broker.awaited"
    """No message can be taken before there is a connection that may declare the queues: detail."""
    INTAKE_PAUSED = "intake.paused"
    """The store accepts no messages; they stay with the broker: detail (which store), count."""
    INTAKE_RESUMED = "intake.resumed"
    """The store accepts messages again: paused_seconds."""
    PUBLISHER_INTERRUPTED = "broker.publisher_interrupted"
    """The link was lost while publishing; pending messages end as unknown: detail."""
    NOTIFIER_UNAVAILABLE = "notifier.unavailable"
    """There is no descriptor or space to listen to other processes: path, detail. Their changes are noticed
    at slow intervals.
    """
    NOTIFIER_RECOVERED = "notifier.recovered"
    """We listen to other processes again: path."""
    HTTP_UNBOUNDED = "http.unbounded"
    """Uvicorn's own protocol serves HTTP, with fewer bounds on what callers can take: open."""
    TASK_CRASHED = "broker.task_crashed"
    """An internal error: task, with the traceback."""
    CONSUMER_INTERRUPTED = "consumer.interrupted"
    """The link or the channel was lost; consuming resumes by itself: queue, detail."""
    QUEUE_MISSING = "consumer.queue_missing"
    """The queue does not exist; it is declared again in a moment: queue."""
    DEAD_LETTER_FAILED = "delivery.dead_letter_failed"
    """A refusal could not be published with its reason; the broker dead-letters it itself: queue, request_id, reason, detail."""
    HEAD_UNREADABLE = "delivery.head_unreadable"
    """A message of NATS whose head no client can read; it becomes a dead letter without its properties: queue, sequence."""
    DEAD_LETTERS_OFF = "broker.dead_letters_off"
    """DEAD_LETTER_ENABLED is false: refused and exhausted messages are dropped and counted: url."""
    DEAD_LETTER_DROPPED = "delivery.dropped"
    """A message was dropped instead of becoming a dead letter: queue (or exchange), request_id, reason."""
    TOKENS_READ = "tokens.read"
    """The token file had changed, and was read again: path, tokens (their names)."""
    TOKENS_UNREADABLE = "tokens.unreadable"
    """The token file had changed, but cannot be used: path, detail. The tokens that were read last stay
    valid: tokens (their names).
    """
    KEYS_READ = "keys.read"
    """A file of keys (SIGNING_KEYS, VERIFY_KEYS, GIT_CREDENTIALS) had changed, and was read again: path."""
    KEYS_UNREADABLE = "keys.unreadable"
    """A file of keys had changed, but cannot be used: path, detail. The keys that were read last stay valid."""
    ACCESS_LOCAL = "access.local_only"
    """There is no token, so the API and pages answer this machine alone: service, tokens (the file). Webhooks are verified by their signature."""
    NO_TOKENS_LEFT = "access.no_tokens_left"
    """There were tokens and none is left, so all are refused: service, tokens (the file), detail."""
    ACCESS_DENIED = "access.denied"
    """A caller sent a token that is unknown, has expired or lacks the scope: needed (the scope), reason, detail."""
    ACCESS_OPEN = "access.open"
    """SOLSTICE_ACCESS=open: the API and pages answer every caller: service."""
    FILE_MODE_NARROWED = "file_mode.narrowed"
    """Other users could read our file or directory, as an older version made it; no longer: path, before (its
    mode).
    """
    FILE_MODE_TOO_WIDE = "file_mode.too_wide"
    """Other users may read the directory of SOLSTICE_HOME, or the file of the broker's password: path, mode,
    detail (the command).
    """
