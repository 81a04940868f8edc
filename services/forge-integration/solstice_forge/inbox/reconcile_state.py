"""The interface for the state that an inbox keeps between two comparisons.

It holds which process compares, which heads are known, and which deliveries the forge was asked for. None of
it decides whether something is built: the keys in `Inbox.keep` decide that.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from solstice_common.values.value import Value

ANYTHING: Final = ""
"""The kind that stands for a delivery of any kind."""


class ResendRecord(Value, frozen=True, kw_only=True):
    """How often, and when last, a forge was asked to send a delivery again."""

    times: int
    requested_at: float


class ReconcileRound(Value, frozen=True, kw_only=True):
    """The last and the current comparison of one source."""

    source_name: str
    is_held: bool
    """Whether a process compares the source now."""
    ended_at: float | None
    report: bytes | None
    """JSON of the last comparison that ended."""


class KnownRepository(Value, frozen=True, kw_only=True):
    """What the log and earlier comparisons say of one repository."""

    kinds: frozenset[str]
    """Kinds of events (`push`, `change_request`) of which a delivery came."""
    compared: frozenset[str]
    """Kinds that were compared before: unknown heads of them are new."""
    heads: Mapping[str, str]
    """The newest known commit of each full ref."""


class RefHead(Value, frozen=True, kw_only=True):
    """The commit of a repository's ref according to an event."""

    kind: str
    ref: str
    commit_sha: str


HeadReader = Callable[[str, str, bytes], RefHead | None]
"""Reads where a ref points since a delivery that was not built.

Its arguments are the source's name, the event's name, and the delivery's JSON text.
"""


class ReconcileState(Protocol):
    """The inbox's part for comparisons; raises only StoreUnavailable. Times are seconds since the epoch."""

    async def claim(
        self, source: str, holder: str, *, now: float, until: float, ended_before: float | None = None
    ) -> bool:
        """Claim the source until `until`, or extend our claim; False while another process holds it.

        False also if the last comparison ended at `ended_before` or later.
        """
        ...

    async def end_round(self, source: str, holder: str, *, now: float, report: bytes) -> None:
        """End the comparison; no effect if another process holds the source by now."""
        ...

    async def rounds(self, now: float) -> Sequence[ReconcileRound]:
        """Return every source that was ever compared."""
        ...

    async def learn(
        self, now: float, unbuilt: Collection[str], read: "HeadReader", *, headless: Collection[str] = ()
    ) -> None:
        """Read new deliveries since the last call, and store where their refs point.

        Of deliveries ignored for a reason in `unbuilt`, `read` finds the ref. Heads of `headless` sources are never
        compared: none is stored, and older ones are removed. Neither are tags.
        """
        ...

    async def repositories(self, source: str) -> Sequence[str]:
        """Return all repositories that deliveries named, sorted by name."""
        ...

    async def known(self, source: str, repository: str) -> KnownRepository:
        """Return the stored state of a repository."""
        ...

    async def remember(
        self, source: str, repository: str, kind: str, heads: Mapping[str, str], at: float
    ) -> None:
        """Store the compared heads of that kind."""
        ...

    async def forget_heads(self, source: str, repository: str, refs: Collection[str], before: float) -> None:
        """Remove these refs where nothing was heard of them since `before`."""
        ...

    async def delivered(self, content_keys: Collection[str]) -> frozenset[str]:
        """Return which of these content keys a delivery had."""
        ...

    async def arrived(self, source: str, delivery_ids: Collection[str]) -> frozenset[str]:
        """Return which of these delivery ids arrived."""
        ...

    async def resends(self, source: str, delivery_ids: Collection[str]) -> Mapping[str, ResendRecord]:
        """Return what the forge was asked to send again, of these."""
        ...

    async def note_resend(self, source: str, delivery_id: str, at: float) -> None:
        """Record that the forge was asked for this once more."""
        ...

    async def cursor(self, source: str, hook: str) -> float | None:
        """Return up to where a hook's deliveries were examined."""
        ...

    async def store_cursor(self, source: str, hook: str, mark: float) -> None:
        """Record that they were examined up to here."""
        ...
