"""Every log event of the code that both services share, once: what happened, and which fields tell more."""

from enum import StrEnum


class LogEvent(StrEnum):
    """A fact in the past tense."""

    BROKER_CONNECTED = "broker.connected"
    """A connection to RabbitMQ is up: url, connection."""
    BROKER_DISCONNECTED = "broker.disconnected"
    """It is gone, or could not be made, and is tried again: url, connection, detail, retry_in."""
    BROKER_MISMATCHED = "broker.topology_mismatched"
    """After a reconnect, an object is not what was declared: kind, name, detail. Only its own consumer stops."""
    BROKER_TROUBLED = "broker.troubled"
    """The embedded broker's file cannot be read or written: url, detail."""
    BROKER_RECOVERED = "broker.recovered"
    """It can again: url."""
    BROKER_OWNER_LOST = "broker.owner_lost"
    """A process died with messages in hand; they go to others: url, owner, returned."""
    PUBLISHER_INTERRUPTED = "broker.publisher_interrupted"
    """The link was lost while publishing; what was under way ends as unknown: detail."""
    TASK_CRASHED = "broker.task_crashed"
    """A mistake of ours: task, with the traceback."""
    CONSUMER_INTERRUPTED = "consumer.interrupted"
    """The link or the channel was lost; consuming goes on by itself: queue, detail."""
    QUEUE_MISSED = "consumer.queue_missed"
    """The queue is not there; it is declared again in a moment: queue."""
    DEAD_LETTER_FAILED = "delivery.dead_letter_failed"
    """A refusal could not be published with its reason; the broker dead-letters it itself: queue, request_id, reason, detail."""
