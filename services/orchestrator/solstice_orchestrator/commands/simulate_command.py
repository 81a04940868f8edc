"""`solstice simulate`: how long jobs of a trace would wait with other slots."""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, note_when_slow, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.cli.subcommands import stands_alone
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.replaced_file import written_whole
from solstice_common.settings import without_password
from solstice_common.values.quantities import quantity
from solstice_orchestrator.commands.simulation_tables import print_report
from solstice_orchestrator.scheduling.capacity import capacity, parse_slots
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.settings import StoreSettings
from solstice_orchestrator.simulation.comparison import with_extra_slot
from solstice_orchestrator.simulation.report import report
from solstice_orchestrator.simulation.tally import SimulationTally
from solstice_orchestrator.simulation.trace import TraceRun, encode, read_runs
from solstice_orchestrator.simulation.traffic import Traffic, generate
from solstice_orchestrator.simulation.virtual_run import SimulationConfig, simulate_trace

app: Final = typer.Typer(help="Simulate how long jobs would wait.", context_settings=CONTEXT_SETTINGS)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The trace to write: JSON lines.")]
SHOWN_EVERY: Final = 5000
"""Lines between two updates of the progress bar."""

T = TypeVar("T")
ReportProgress = Callable[[int, int], None]
"""Called with the amount that is done, and the total."""


@app.callback(invoke_without_command=True)
def simulate(
    *,
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", "-t", metavar="FILE", help="The jobs: JSON lines, one job a line."),
    ] = None,
    slots: Annotated[
        str, typer.Option(metavar="MAP", help="As CAPACITY_MAP, all workers together: linux=8,illumos=1.")
    ] = "",
    max_concurrency: Annotated[
        int, typer.Option(min=0, help="Jobs at once over all labels; 0: as many as there are slots.")
    ] = 0,
    repository_caps: Annotated[
        str, typer.Option(metavar="CAPS", help="As REPOSITORY_CAPS: *=8,acme/app=2.")
    ] = "",
    owner_caps: Annotated[str, typer.Option(metavar="CAPS", help="As OWNER_CAPS: *=20,acme=50.")] = "",
    owner_starts_per_hour: Annotated[
        str, typer.Option(metavar="QUOTAS", help="As OWNER_STARTS_PER_HOUR: *=200,acme=1000.")
    ] = "",
    label_start_rates: Annotated[
        str, typer.Option(metavar="RATES", help="As LABEL_START_RATES: linux=10/s:20,*=600/h.")
    ] = "",
    repository_start_rates: Annotated[
        str, typer.Option(metavar="RATES", help="As REPOSITORY_START_RATES: *=60/m:10.")
    ] = "",
    max_wait_seconds: Annotated[
        float, typer.Option(min=0, help="As MAX_WAIT_SECONDS: jobs that waited longer go before all others.")
    ] = MAX_WAIT_SECONDS,
    more: Annotated[
        bool,
        typer.Option("--one-more/--no-one-more", help="Simulate again with one more slot of each label."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Compute how long jobs of a trace would wait, in virtual time.

    Give --trace and --slots; `generate` and `record` make a trace.

    The orchestrator's own scheduling decides who starts.
    """
    if not stands_alone(context):
        return
    if trace is None or not slots:
        raise ConfigurationError(
            "what comes, and with how many slots? solstice simulate --trace FILE --slots linux=8; "
            "'solstice simulate generate' and 'solstice simulate record' write such a file"
        )
    limits = StartLimits(
        caps=_read(parse_caps, "--repository-caps", repository_caps),
        quotas=Quotas(
            slots=_read(parse_caps, "--owner-caps", owner_caps),
            starts_per_hour=_read(parse_caps, "--owner-starts-per-hour", owner_starts_per_hour),
        ),
        rates=StartRates(
            labels=_read(parse_rates, "--label-start-rates", label_start_rates),
            repositories=_read(parse_rates, "--repository-start-rates", repository_start_rates),
        ),
    )
    total = capacity(_read(parse_slots, "--slots", slots), max_concurrency)
    configuration = SimulationConfig(capacity=total, limits=limits, max_wait_seconds=max_wait_seconds)
    with _bar() as bar:

        def again(label: str) -> Iterator[TraceRun]:
            return _runs(trace, bar(f"with one more of {label}"))

        tally = SimulationTally()
        simulate_trace(_runs(trace, bar("playing")), configuration, tally)
        served = [label for label in configuration.capacity.slots if more]
        changes = [
            change
            for label in served
            if (
                change := with_extra_slot(
                    partial(again, label),
                    configuration,
                    tally,
                    label,
                )
            )
        ]
    simulation_report = report(tally, configuration.capacity)
    if as_json:
        print_json({**asdict(simulation_report), "one_more": [asdict(change) for change in changes]})
    else:
        print_report(simulation_report, changes)


@app.command("generate")
def generate_trace(
    *,
    out: Out,
    jobs: Annotated[int, typer.Option(min=1, help="The number of jobs.")] = 1_000_000,
    repositories: Annotated[
        int, typer.Option(min=1, help="The number of repositories; by Zipf's law a few send most.")
    ] = 10_000,
    owners: Annotated[
        int, typer.Option(min=1, help="The number of owners, to which they belong in turn.")
    ] = 1,
    over: Annotated[
        str,
        typer.Option(metavar="TIME", help="The length of the trace, from a Monday's midnight: 365d, 24h."),
    ] = "365d",
    labels: Annotated[
        str, typer.Option(metavar="MAP", help="The labels, and the share of each.")
    ] = "linux=1",
    median_seconds: Annotated[float, typer.Option(min=0.001, help="The median duration of jobs.")] = 60.0,
    chained: Annotated[
        float, typer.Option(min=0, max=1, help="The share of runs whose jobs need each other.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Write a trace of invented traffic.

    It has days and nights, a few busy repositories and many quiet ones, short and long jobs.
    """
    traffic = Traffic(
        jobs=jobs,
        repositories=repositories,
        owners=owners,
        over_seconds=age_given("--over", over),
        labels=_read(parse_slots, "--labels", labels),
        median_seconds=median_seconds,
        chained=chained,
    )
    with _written(out) as file, _bar() as bar:
        report = bar("generating")
        for number, job in enumerate(generate(traffic, random.Random(seed)), start=1):  # noqa: S311  repeatable
            file.write(encode(job))
            if number % SHOWN_EVERY == 0:
                report(number, jobs)
    _print_written(out, jobs, as_json=as_json)


@app.command("record")
@with_settings(StoreSettings)
def record_trace(
    settings: StoreSettings,
    *,
    out: Out,
    since: Annotated[
        str, typer.Option(metavar="AGE", help="Runs that were planned no longer ago: 30d, 12h.")
    ] = "365d",
    as_json: AsJson = False,
) -> None:
    """Write a trace of the past jobs of a store."""
    begin = time.time() - age_given("--since", since)
    with _written(out) as file, note_when_slow(f"the database at {without_password(settings.database_url)}"):
        jobs = asyncio.run(_record(settings.database_url, begin, file))
    _print_written(out, jobs, as_json=as_json)


async def _record(url: str, since: float, file: BinaryIO) -> int:
    from solstice_orchestrator.store.admin.record import recorded_runs  # noqa: PLC0415  others do not pay for PostgreSQL

    jobs = 0
    async for run in recorded_runs(url, since):
        file.writelines(encode(job) for job in run)
        jobs += len(run)
    return jobs


def _read(parse: Callable[[str], T], option: str, text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _runs(trace: Path, report: ReportProgress) -> Iterator[TraceRun]:
    """Yield the trace from its beginning; lines are read on demand."""

    def lines(file: BinaryIO, size: int) -> Iterator[bytes]:
        for number, line in enumerate(file, start=1):
            yield line
            if number % SHOWN_EVERY == 0:
                report(file.tell(), size)

    try:
        with trace.open("rb") as file:
            yield from read_runs(lines(file, trace.stat().st_size), str(trace))
    except OSError as error:
        raise ConfigurationError(f"--trace: {trace}: {error.strerror or error}") from error


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole, or not at all."""
    if not path.name:
        raise ConfigurationError("--out must name a file")
    try:
        # For its owner alone, as the store is.
        with written_whole(path) as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"--out: {path}: {error.strerror or error}") from error


@contextmanager
def _bar() -> Iterator[Callable[[str], ReportProgress]]:
    """Show a progress bar for each part of the work, on a terminal."""
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:

        def begin(what: str) -> ReportProgress:
            task = bars.add_task(what, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield begin


def _print_written(out: Path, jobs: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"trace": str(out), "jobs": jobs})
    else:
        typer.echo(f"wrote {quantity(jobs, 'job')} to {out}")
