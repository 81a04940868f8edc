"""Shows people how far a load has come, and its report."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from solstice_cli.load.load_report import LoadReport, StopTimes
from solstice_common.cli.terminal import without_controls

LINE_SECONDS: Final = 10.0
"""Seconds between two lines of progress where there is no terminal."""
HEADINGS: Final = ("p50", "p95", "p99", "longest")
MEANINGS: Final[Mapping[str, str]] = {
    "accepted": "due -> accepted",
    "stored": "-> stored",
    "planned": "-> planned",
    "started": "-> started",
    "ended": "-> ended",
    "whole": "due -> ended",
}


class LoadBars(Protocol):
    """Is told how many requests were sent, and how many have ended."""

    def sent(self, done: int) -> None:
        """So many were sent, of all."""
        ...

    def ended(self, done: int) -> None:
        """So many have ended, of all."""
        ...


@contextmanager
def load_bars(requests: int, *, as_json: bool) -> Iterator[LoadBars]:
    """Two bars on a terminal; a line now and then elsewhere; nothing with --json."""
    if as_json:
        yield _Silent()
    elif not sys.stderr.isatty():
        yield _Lines(requests)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            yield _Bars(bars, requests)


class _Silent:
    def sent(self, done: int) -> None: ...

    def ended(self, done: int) -> None: ...


class _Bars:
    def __init__(self, bars: Progress, requests: int) -> None:
        self._bars = bars
        self._sent = bars.add_task("sent", total=requests)
        self._ended = bars.add_task("ended", total=requests)

    def sent(self, done: int) -> None:
        self._bars.update(self._sent, completed=done)

    def ended(self, done: int) -> None:
        self._bars.update(self._ended, completed=done)


class _Lines:
    def __init__(self, requests: int) -> None:
        self._requests, self._sent = requests, 0
        self._shown_at = time.monotonic()

    def sent(self, done: int) -> None:
        self._sent = done

    def ended(self, done: int) -> None:
        if time.monotonic() - self._shown_at >= LINE_SECONDS:
            self._shown_at = time.monotonic()
            typer.echo(f"{self._sent} of {self._requests} sent, {done} ended", err=True)


def print_report(report: LoadReport) -> None:
    """Print the counts, the times of each stop, and what is wrong."""
    for line in report_lines(report):
        typer.echo(line)


def report_lines(report: LoadReport) -> list[str]:
    """Return the lines; none is longer than 60 columns, except for what is wrong."""
    lines = [
        f"accepted  {report.accepted} of {report.requests}{_speed(report.accepted, report.send_seconds)}",
        f"unsent    {report.unsent}",
        f"ended     {report.ended}{_speed(report.ended, report.run_seconds)}",
        *(f"          {count} {state}" for state, count in sorted(report.states.items())),
        f"lost      {report.lost}",
        f"unfinished {report.unfinished}",
        f"duplicated {report.duplicated}",
        f"wrong     {report.wrong}",
        f"retried {report.retried}, rescued {report.rescued}, repeated for other failures {report.repeated}",
    ]
    if report.stops:
        lines += ["", f"{'':16}" + "".join(f"{heading:>11}" for heading in HEADINGS)]
        lines += [_stop_line(stop) for stop in report.stops]
    wrong = [
        *(f"{count} not accepted: {why}" for why, count in report.refusals.items()),
        *report.examples,
    ]
    return lines + ([""] if wrong else []) + [without_controls(line) for line in wrong]


def _speed(count: int, seconds: float) -> str:
    return f" in {seconds:.1f} s ({count / seconds:.1f}/s)" if seconds > 0 else ""


def _stop_line(stop: StopTimes) -> str:
    figures = (stop.p50, stop.p95, stop.p99, stop.longest)
    return f"{MEANINGS[stop.stop]:16}" + "".join(f"{_shown(seconds):>11}" for seconds in figures)


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"  # noqa: PLR2004  readability
