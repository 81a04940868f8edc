"""Reads which subject a user of NATS may not use, from the server's refusal. Pure.

nats-py makes the whole refusal lower case; the subjects of JetStream's own API are written back as they are.
"""

import re
from typing import Final

_DENIED: Final = re.compile(
    r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE
)
_OWN: Final = re.compile(r"^(\$js\.|\$kv\.|_inbox\.)", re.IGNORECASE)
_WORDS: Final = frozenset(
    {
        *(
            "$js",
            "$kv",
            "_inbox",
            "ack",
            "api",
            "consumer",
            "create",
            "delete",
            "direct",
            "durable",
            "get",
            "info",
        ),
        *("list", "msg", "names", "next", "purge", "stream", "update"),
    }
)


def denied_subject(error: str) -> tuple[str, str] | None:
    """The right, `publish` or `subscribe`, and the subject; None for another error."""
    found = _DENIED.search(error)
    if found is None:
        return None
    right = "publish" if found[1].lower() == "publish" else "subscribe"
    return right, restored(found[2])


def restored(subject: str) -> str:
    """A subject of JetStream with the case that it has; others as they are."""
    if _OWN.match(subject) is None:
        return subject
    words = [word.upper() if word in _WORDS else word for word in subject.split(".")]
    return ".".join(re.sub("^kv_", "KV_", word) for word in words)
