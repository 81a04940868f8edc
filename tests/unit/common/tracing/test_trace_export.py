"""What the exporter does when the collector, or the database, does not do its part."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence

import pytest

from solstice_common.errors import StoreUnavailable
from solstice_common.tracing import trace_export
from solstice_common.tracing.otlp import Exported, ExportPostponed, ExportRefused, ExportResult
from solstice_common.tracing.spans import Span, SpanType
from solstice_common.tracing.trace_export import TracedItem, TraceEvents, TraceExport, parts_of

EVENTS = TraceEvents(paused="paused", resumed="resumed", refused="refused", crashed="crashed")


def spans_of(count: int) -> list[Span]:
    return [
        Span(
            type=SpanType.WAIT,
            name="wait",
            trace_id="1" * 32,
            span_id=f"{number:016x}",
            parent_id=None,
            started_at=1.0,
            ended_at=2.0,
            attributes={},
        )
        for number in range(1, count + 1)
    ]


def work(key: int, spans: int = 2) -> TracedItem[int]:
    return TracedItem(key=key, spans=lambda: spans_of(spans))


class Backlog:
    """Work that waits, as a database would keep it."""

    def __init__(self, *waiting: TracedItem[int]) -> None:
        self.waiting = list(waiting)
        self.failures = 0

    async def take(self, limit: int, leased_seconds: float) -> Sequence[TracedItem[int]]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the store", "away")
        return self.waiting[:limit]

    async def traced(self, keys: Sequence[int]) -> None:
        self.waiting = [each for each in self.waiting if each.key not in keys]


class Collector:
    """Answers as scripted, then takes all."""

    def __init__(self, *answers: ExportResult) -> None:
        self.answers = deque(answers)
        self.exports: list[int] = []
        """The sizes of the exports."""

    async def send(self, spans: Sequence[Span]) -> ExportResult:
        answer = self.answers.popleft() if self.answers else Exported()
        if isinstance(answer, Exported):
            self.exports.append(len(spans))
        return answer


class Pauses:
    """Waits in no time; ends the exporter after so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self.most:
            raise asyncio.CancelledError


async def export(backlog: Backlog, collector: Collector, *, pauses: int) -> tuple[Counter[str], list[float]]:
    counted: Counter[str] = Counter()

    def count(outcome: str, spans: int) -> None:
        counted[outcome] += spans

    slept = Pauses(pauses)
    running = TraceExport(backlog, collector, count=count, events=EVENTS, rng=random.Random(1), sleep=slept)
    with pytest.raises(asyncio.CancelledError):
        await running.run()
    return counted, slept.seconds


async def test_what_waits_is_sent_and_waits_no_more() -> None:
    backlog, collector = Backlog(work(1), work(2)), Collector()
    counted, pauses = await export(backlog, collector, pauses=1)
    assert (backlog.waiting, collector.exports, counted) == ([], [4], {"sent": 4})
    assert pauses == [trace_export.POLL_SECONDS]


async def test_what_the_collector_cannot_take_now_waits_and_is_sent_later() -> None:
    backlog = Backlog(work(1))
    collector = Collector(ExportPostponed(detail="HTTP 503"), ExportPostponed(detail="HTTP 503"))
    counted, pauses = await export(backlog, collector, pauses=3)
    assert (backlog.waiting, collector.exports) == ([], [2])
    assert counted == {"postponed": 4, "sent": 2}
    assert all(
        trace_export.FIRST_RETRY_SECONDS <= each <= trace_export.LAST_RETRY_SECONDS for each in pauses[:2]
    )


async def test_what_the_collector_never_takes_is_counted_and_does_not_stop_the_rest() -> None:
    backlog = Backlog(*(work(key, spans=trace_export.MOST_SPANS) for key in range(3)))
    collector = Collector(ExportRefused(detail="HTTP 400"))
    counted, _ = await export(backlog, collector, pauses=1)
    assert backlog.waiting == []
    assert counted == {"refused": trace_export.MOST_SPANS, "sent": 2 * trace_export.MOST_SPANS}


async def test_rejected_spans_of_a_part_are_counted_and_never_more_than_there_were() -> None:
    counted, _ = await export(Backlog(work(1)), Collector(Exported(rejected=99)), pauses=1)
    assert counted == {"refused": 2, "sent": 0}


async def test_a_database_that_is_away_is_asked_again() -> None:
    backlog, collector = Backlog(work(1)), Collector()
    backlog.failures = 2
    counted, _ = await export(backlog, collector, pauses=3)
    assert (backlog.waiting, counted) == ([], {"sent": 2})


async def test_a_long_backlog_is_sent_without_a_pause() -> None:
    backlog = Backlog(*(work(key, spans=1) for key in range(3 * trace_export.PER_ROUND)))
    counted, pauses = await export(backlog, Collector(), pauses=1)
    assert counted == {"sent": 300}
    assert pauses == [trace_export.POLL_SECONDS]


async def test_an_internal_error_ends_nothing_and_what_caused_it_waits_no_more() -> None:
    broken: TracedItem[int] = TracedItem(key=1, spans=lambda: [spans_of(0)[1]])
    backlog, collector = Backlog(broken, work(2)), Collector()
    counted, _ = await export(backlog, collector, pauses=1)
    assert (backlog.waiting, counted) == ([], {"sent": 2})


async def test_an_error_of_the_exporter_ends_nothing() -> None:
    class Broken(Collector):
        async def send(self, spans: Sequence[Span]) -> ExportResult:
            if not self.exports:
                self.exports.append(0)
                raise RuntimeError("a bug")
            return await super().send(spans)

    backlog = Backlog(work(1))
    counted, pauses = await export(backlog, Broken(), pauses=2)
    assert (backlog.waiting, counted) == ([], {"sent": 2})
    assert pauses[0] >= trace_export.FIRST_RETRY_SECONDS


async def test_work_without_spans_waits_no_more() -> None:
    backlog, collector = Backlog(work(1, spans=0)), Collector()
    await export(backlog, collector, pauses=1)
    assert (backlog.waiting, collector.exports) == ([], [])


def test_exports_are_small_and_no_work_is_divided() -> None:
    sizes = [300, 200, 1, 1500, 1, 1]
    parts = [[len(spans) for _, spans in part] for part in parts_of([(0, spans_of(size)) for size in sizes])]
    assert parts == [[300, 200], [1], [1500], [1, 1]]
    assert list(parts_of([])) == []
