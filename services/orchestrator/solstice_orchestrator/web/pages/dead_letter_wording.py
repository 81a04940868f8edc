"""The words of the pages of dead letters. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_routes import CANCELS_KIND, REQUESTS_KIND, STATUSES_KIND
from solstice_common.values.quantities import quantity
from solstice_common.values.times import format_timestamp

LINE: Final = 200
"""The most characters of a detail that a list shows."""
QUEUES: Final[Mapping[str, str]] = MappingProxyType(
    {REQUESTS_KIND: "Requests", CANCELS_KIND: "Requests to cancel", STATUSES_KIND: "Statuses"}
)
AGES: Final = (("1h", "Last hour"), ("1d", "Last day"), ("7d", "Last 7 days"), ("30d", "Last 30 days"))
DONE: Final[Mapping[str, str]] = MappingProxyType({"replay": "replayed", "drop": "dropped"})


def place(found: DeadLetterFacts) -> str:
    """The place in the list, as text that sorts the oldest first."""
    since = "" if found.dead_since is None else format_timestamp(found.dead_since)
    return f"{since} {found.id}"


def name(found: DeadLetterFacts) -> str:
    """Its name for people: the repository, else the request, else the id."""
    return shortened(found.repository or found.request_id or found.id)


def shortened(text: str) -> str:
    """The first line, at most LINE characters of it."""
    first = text.strip().partition("\n")[0]
    return f"{first[:LINE]}…" if len(first) > LINE else first


def number(count: int) -> str:
    """`1 dead letter`, `2 dead letters`."""
    return quantity(count, "dead letter")


def link(path: str, filters: Mapping[str, str], **more: str) -> str:
    """A path with these filters; empty ones are left out."""
    given = {key: value for key, value in {**filters, **more}.items() if value}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def moment(found: DeadLetterFacts) -> float | None:
    """When it was refused, in seconds since the epoch."""
    return None if found.dead_since is None else found.dead_since.timestamp()
