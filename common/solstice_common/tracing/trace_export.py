"""Takes ended work from a database, and sends its spans to the collector.

The database is the queue: what is not sent yet waits there, across restarts, until the collector has taken it. So a
trace is sent whole, or not at all, and nothing else waits for a collector.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.periodic import Sleep
from solstice_common.tracing.otlp import Exported, ExportPostponed, ExportRefused, ExportResult
from solstice_common.tracing.spans import Span

log = structlog.get_logger(__name__)

Key = TypeVar("Key")

POLL_SECONDS: Final = 2.0
"""How often ended work is searched for; each time all that has ended is sent."""
LEASED_SECONDS: Final = 10.0
"""For how long no other process takes the same work: longer than an export may take."""
PER_ROUND: Final = 100
"""How many runs, or requests, one round takes at most."""
MOST_SPANS: Final = 500
"""The size of one export, in spans: encoding it takes some milliseconds. One run may have more."""
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedItem(Generic[Key]):
    """An ended run, request or status, and what makes all of its spans."""

    key: Key
    spans: Callable[[], Sequence[Span]]


class TracedBacklog(Protocol[Key]):
    """The ended work whose spans no collector has taken yet."""

    async def take(self, limit: int, leased_seconds: float) -> Sequence[TracedItem[Key]]:
        """Return some of it, oldest first, which no other process gets for so many seconds."""
        ...

    async def traced(self, keys: Sequence[Key]) -> None:
        """Remove what a collector has taken, or will never take."""
        ...


class Sender(Protocol):
    """The part of the exporter that sends spans."""

    async def send(self, spans: Sequence[Span]) -> ExportResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvents:
    """The names of a service's log events about traces."""

    paused: str
    resumed: str
    refused: str
    crashed: str


class TraceExport(Generic[Key]):
    """Sends a backlog, a group at a time."""

    def __init__(
        self,
        backlog: TracedBacklog[Key],
        exporter: Sender,
        *,
        count: Callable[[str, int], None],
        events: TraceEvents,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`count` takes what became of spans (`sent`, `refused`, `postponed`), and of how many."""
        self._backlog = backlog
        self._exporter = exporter
        self._count = count
        self._events = events
        self._rng = rng
        self._sleep = sleep
        self._failures = 0

    async def run(self) -> None:
        """Send what ends, until cancelled; the rest is sent by the next start."""
        while True:
            try:
                more = await self._send_group()
            except StoreUnavailable as error:
                self._postponed(str(error))
                more = False
            except Exception:
                # Nothing else ends for the sake of a trace.
                log.exception(self._events.crashed)
                self._failures += 1
                more = False
            if self._failures:
                pause = backoff_seconds(
                    self._failures - 1,
                    rng=self._rng,
                    base_seconds=FIRST_RETRY_SECONDS,
                    cap_seconds=LAST_RETRY_SECONDS,
                )
                await self._sleep(max(pause, FIRST_RETRY_SECONDS))
            elif not more:
                await self._sleep(POLL_SECONDS)

    async def _send_group(self) -> bool:
        """Send one group; return whether there may be more."""
        group = await self._backlog.take(PER_ROUND, LEASED_SECONDS)
        for part in parts_of([(work.key, self._spans(work)) for work in group]):
            spans = [span for _, of_work in part for span in of_work]
            match await self._exporter.send(spans) if spans else Exported():
                case ExportPostponed(detail=detail):
                    self._count("postponed", len(spans))
                    self._postponed(detail)
                    return False
                case ExportRefused(detail=detail):
                    self._refused(len(spans), detail)
                case Exported(rejected=rejected):
                    self._count("sent", len(spans) - min(rejected, len(spans)))
                    if rejected:
                        self._refused(min(rejected, len(spans)), "the collector took only a part")
            await self._backlog.traced([key for key, _ in part])
            if self._failures:
                log.info(self._events.resumed)
            self._failures = 0
        return len(group) == PER_ROUND

    def _spans(self, work: TracedItem[Key]) -> Sequence[Span]:
        """Return the spans of the work; none after an internal error."""
        try:
            return work.spans()
        except Exception:
            log.exception(self._events.crashed, key=work.key)
            return ()

    def _refused(self, spans: int, detail: str) -> None:
        self._count("refused", spans)
        log.warning(self._events.refused, spans=spans, detail=detail)

    def _postponed(self, detail: str) -> None:
        if not self._failures:
            log.warning(self._events.paused, detail=detail)
        self._failures += 1


def parts_of(group: Sequence[tuple[Key, Sequence[Span]]]) -> Iterator[Sequence[tuple[Key, Sequence[Span]]]]:
    """Divide a group into exports of about MOST_SPANS, without dividing the spans of any work."""
    part: list[tuple[Key, Sequence[Span]]] = []
    count = 0
    for key, spans in group:
        if part and count + len(spans) > MOST_SPANS:
            yield part
            part, count = [], 0
        part.append((key, spans))
        count += len(spans)
    if part:
        yield part
