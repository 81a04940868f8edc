"""What an inbox promises to remember between two comparisons with a forge: which process compares, what is known, what was asked for.

Nothing of it decides whether something is built: that is for the keys in `Inbox.keep`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from solstice_common.values import Value

ANYTHING: Final = ""
"""The kind of a repository of which some delivery came, whatever it was."""


class ResendRecord(Value, frozen=True, kw_only=True):
    """How often a forge was asked to send a delivery again, and when last."""

    times: int
    asked_at: float


class ReconcileRound(Value, frozen=True, kw_only=True):
    """What is known of the comparisons of one source."""

    source_name: str
    is_held: bool
    """Somebody is at it."""
    ended_at: float | None
    report: bytes | None
    """JSON; of the last one that ended."""


class KnownRepository(Value, frozen=True, kw_only=True):
    """What the log and earlier comparisons tell of one repository."""

    kinds: frozenset[str]
    """Kinds of events (`push`, `change_request`) of which one came."""
    compared: frozenset[str]
    """Kinds that were compared before: what is unknown of them is new."""
    heads: Mapping[str, str]
    """The newest known commit of each full ref."""


class RefHead(Value, frozen=True, kw_only=True):
    """What an event says of a repository."""

    kind: str
    ref: str
    commit_sha: str


HeadReader = Callable[[str, str, bytes], RefHead | None]
"""(Name of the source, of the event, JSON text of a delivery that was not built) -> where the ref points since."""


class ReconcileState(Protocol):
    """The part of the inbox that comparisons rest on; raises only StoreUnavailable. Times are seconds since the epoch."""

    async def claim(
        self, source: str, holder: str, *, now: float, until: float, ended_before: float | None = None
    ) -> bool:
        """Take the source until then, or for longer if it is ours; False while somebody else has it.

        `ended_before`: nor if the last comparison ended then or later.
        """
        ...

    async def end_round(self, source: str, holder: str, *, now: float, report: bytes) -> None:
        """The comparison is over; nothing happens if the source is somebody else's by now."""
        ...

    async def rounds(self, now: float) -> Sequence[ReconcileRound]:
        """Every source that was ever compared."""
        ...

    async def learn(self, now: float, unbuilt: Collection[str], read: "HeadReader") -> None:
        """Take in what came since the last time; of what was ignored for one of the reasons `unbuilt`, by `read`."""
        ...

    async def repositories(self, source: str) -> Sequence[str]:
        """All that deliveries were about, in the order of their names."""
        ...

    async def known(self, source: str, repository: str) -> KnownRepository:
        """What is known of a repository."""
        ...

    async def remember(
        self, source: str, repository: str, kind: str, heads: Mapping[str, str], at: float
    ) -> None:
        """The heads of that kind are dealt with, and these are where the forge had them then."""
        ...

    async def delivered(self, content_keys: Collection[str]) -> frozenset[str]:
        """Which of these contents a delivery asked for."""
        ...

    async def arrived(self, source: str, delivery_ids: Collection[str]) -> frozenset[str]:
        """Under which of these ids something came."""
        ...

    async def resends(self, source: str, delivery_ids: Collection[str]) -> Mapping[str, ResendRecord]:
        """What the forge was asked for again, of these."""
        ...

    async def note_resend(self, source: str, delivery_id: str, at: float) -> None:
        """The forge was asked for this once more."""
        ...

    async def looked_to(self, source: str, hook: str) -> float | None:
        """How far a hook's deliveries were dealt with."""
        ...

    async def note_looked_to(self, source: str, hook: str, mark: float) -> None:
        """They are dealt with up to here."""
        ...
