"""Every log event of forge-integration, once: what happened, and which fields tell more."""

from enum import StrEnum


class LogEvent(StrEnum):
    """A fact in the past tense; `delivery_id` and `request_id` are the threads that lead through all services."""

    SERVICE_STARTED = "forge.started"
    """Listening: host, port, sources, broker, inbox."""
    SERVICE_DRAINED = "forge.drained"
    """Stopped in order: pending tells how many requests wait in the inbox for the next start."""
    WEBHOOK_KEPT = "webhook.kept"
    """Durable: source, delivery_id, event_name, decision, reason, request_ids, repo_full_name."""
    WEBHOOK_REFUSED = "webhook.refused"
    """Not taken: source, status, reason, detail."""
    WEBHOOK_NOT_KEPT = "webhook.not_kept"
    """Genuine, but the inbox could not be written: source, delivery_id, detail. The forge was told 503."""
    WEBHOOK_ABORTED = "webhook.aborted"
    """The sender went away, or was too slow, before its body was here: source."""
    WEBHOOK_FAILED = "webhook.failed"
    """A mistake of ours: path, with the traceback. The forge was told 500."""
    RELAY_PUBLISHED = "relay.published"
    """Confirmed by the broker: count, request_ids."""
    RELAY_NOT_PUBLISHED = "relay.not_published"
    """Not confirmed, stays pending: count, status, detail, request_ids."""
    RELAY_HELD = "relay.held"
    """Publishing waits: detail. Webhooks are taken all the same."""
    RELAY_RESUMED = "relay.resumed"
    """Publishing goes on: held_seconds."""
