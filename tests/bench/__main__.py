"""`./just bench`: measures our figures beside a yardstick, in one run.

It measures and prints; it never judges.
"""

import asyncio
import json
import os
import platform
import signal
import sqlite3
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from solstice_common.telemetry.logs import configure_logs
from tests.bench import (
    agreeing,
    claiming,
    consuming,
    executors,
    first_status,
    handing,
    idle,
    jobs,
    large_checkouts,
    latency,
    line,
    outage,
    publishing,
    signing,
    simulating,
    tracing,
    whole_loads,
)
from tests.bench.agreeing import MeanWaits
from tests.bench.checkouts import python_of
from tests.bench.claiming import Claiming
from tests.bench.executors import Executors
from tests.bench.first_status import FirstStatus
from tests.bench.handing import HandedOn
from tests.bench.idle import Idle
from tests.bench.jobs import Jobs
from tests.bench.large_checkouts import LargeCheckouts
from tests.bench.latency import Latency
from tests.bench.outage import Outage
from tests.bench.pairs import Comparison, collect_garbage
from tests.bench.servers import BROKERS, BenchEmbedded, BenchNats, BenchRedis, BenchServer, round_of
from tests.bench.simulating import Simulating
from tests.bench.whole_loads import WholeLoads
from tests.servers.rabbitmq import FLAVOURS, RabbitMQServer, flavours, shared_rabbitmq

Figures = (
    Comparison
    | Latency
    | FirstStatus
    | Outage
    | Simulating
    | MeanWaits
    | Jobs
    | LargeCheckouts
    | Executors
    | HandedOn
    | WholeLoads
    | Mapping[str, Idle]
    | list[Claiming]
)
S = TypeVar("S")
Measure = Callable[[RabbitMQServer, bool], Awaitable[Figures]]

ON_ANY_BROKER: Final[Mapping[str, Callable[[BenchServer, bool], Awaitable[Figures]]]] = {
    "publish": lambda server, quick: publishing.measure(
        server, count=2_000 if quick else round_of(server), rounds=1 if quick else 9
    ),
    "consume": lambda server, quick: consuming.measure(
        server, count=2_000 if quick else round_of(server), rounds=1 if quick else 5
    ),
    "load": lambda server, quick: whole_loads.measure(
        server, real=20 if quick else 400, burst=100 if quick else 10_000
    ),
}


def of_checkouts(beside: Path | None) -> Mapping[str, Measure]:
    """Return the measures that can measure another checkout as well."""
    return {
        "jobs": lambda _, quick: jobs.measure(
            count=60 if quick else 240, rounds=1 if quick else 5, beside=beside
        ),
        "latency": lambda server, quick: latency.measure(
            server, count=100 if quick else 1_000, beside=beside
        ),
        "builds": lambda server, quick: latency.measure_builds(
            server, count=40 if quick else 400, beside=beside
        ),
    }


MEASURES: Final[Mapping[str, Measure]] = {
    **ON_ANY_BROKER,
    "line": lambda server, quick: line.measure(
        server, count=1_000 if quick else 10_000, rounds=1 if quick else 5
    ),
    "signing": lambda server, quick: signing.measure(
        server, count=1_000 if quick else 10_000, rounds=3 if quick else 7
    ),
    "signed-runs": lambda server, quick: signing.measure_runs(
        server, count=50 if quick else 400, rounds=1 if quick else 5
    ),
    "traces": lambda server, quick: tracing.measure(
        server, count=50 if quick else 400, rounds=1 if quick else 5
    ),
    "claim": lambda _, quick: claiming.measure(
        count=1_600 if quick else 25_600,
        finished=10_000 if quick else 1_000_000,
        waiting=20_000 if quick else 100_000,
        rounds=1 if quick else 5,
    ),
    **of_checkouts(None),
    "checkout": lambda _, quick: large_checkouts.measure(
        files=400 if quick else 4_000, rounds=1 if quick else 3
    ),
    "handing": lambda _, quick: asyncio.to_thread(
        handing.measure, mebibytes=32 if quick else 1024, rounds=1 if quick else 3
    ),
    "executors": lambda _, quick: executors.measure(count=4 if quick else 12, rounds=1 if quick else 5),
    "status": lambda server, quick: first_status.measure(server, count=25 if quick else 300),
    "outage": lambda server, quick: outage.measure(
        server, outage_seconds=5 if quick else outage.OUTAGE_SECONDS
    ),
    "simulate": lambda _, quick: simulating.measure(jobs=20_000 if quick else 1_000_000),
    "agree": lambda server, quick: agreeing.measure(server, count=15 if quick else 90),
    "idle": lambda server, quick: idle.measure(server, seconds=5 if quick else 30),
}

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def bench(
    what: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(MEASURES)}; all unless told.")
    ] = None,
    rabbitmq: Annotated[str, typer.Option(help=f"One of {', '.join(FLAVOURS)}.")] = flavours()[0][-1],
    broker: Annotated[str, typer.Option(help=f"One of {', '.join(BROKERS)}.")] = BROKERS[0],
    beside: Annotated[
        Path | None,
        typer.Option(
            help=f"Another checkout, installed, to measure in the same run: {', '.join(of_checkouts(None))}."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Few messages, one round: to see that it runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Measure each rate and its yardstick in pairs; the ratio counts."""
    configure_logs("console", "error")
    # As Ctrl-C does: the services and servers of a measure end with it.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    chosen = what or list(MEASURES)
    if unknown := set(chosen) - set(MEASURES):
        raise typer.BadParameter(f"no such measure: {', '.join(sorted(unknown))}")
    if broker not in BROKERS:
        raise typer.BadParameter(f"no such broker: {broker}; one of {', '.join(BROKERS)}")
    if broker != "rabbitmq" and (others := set(chosen) - set(ON_ANY_BROKER)):
        raise typer.BadParameter(f"on {broker}: {', '.join(ON_ANY_BROKER)}; not {', '.join(sorted(others))}")
    if beside is not None and (others := set(chosen) - set(of_checkouts(None))):
        raise typer.BadParameter(f"no measure of two checkouts: {', '.join(sorted(others))}")
    if beside is not None and not python_of(beside).exists():
        raise typer.BadParameter(f"{beside} is not installed: run ./just install there")
    if broker == "nats":
        with BenchNats() as nats:
            figures = uvloop.run(measure_all(nats, chosen, quick=quick, measures=ON_ANY_BROKER))
            version = f"NATS {nats.version}, sync_interval always"
    elif broker == "embedded":
        figures = uvloop.run(measure_all(BenchEmbedded(), chosen, quick=quick, measures=ON_ANY_BROKER))
        version = f"embedded, SQLite {sqlite3.sqlite_version}, synchronous=FULL"
    elif broker == "redis":
        with BenchRedis() as redis:
            figures = uvloop.run(measure_all(redis, chosen, quick=quick, measures=ON_ANY_BROKER))
            version = f"Redis {redis.version}, appendfsync always"
    else:
        with shared_rabbitmq(rabbitmq, synced=True) as server:
            figures = uvloop.run(
                measure_all(server, chosen, quick=quick, measures={**MEASURES, **of_checkouts(beside)})
            )
            version = f"RabbitMQ {server.version}, quorum queues"
    if as_json:
        print(json.dumps({name: _plain(figure) for name, figure in figures.items()}, indent=2))  # noqa: T201
    else:
        show(figures, version)


async def measure_all(
    server: S,
    chosen: list[str],
    *,
    quick: bool,
    measures: Mapping[str, Callable[[S, bool], Awaitable[Figures]]],
) -> dict[str, Figures]:
    """Measure one after the other: nothing else may run beside a measurement."""
    console, figures = Console(stderr=True), {}
    for name in chosen:
        with console.status(f"measuring: {name}"):
            collect_garbage()
            figures[name] = await measures[name](server, quick)
        await asyncio.sleep(1)
    return figures


def show(figures: Mapping[str, Figures], version: str) -> None:
    """Print the figures for people."""
    console = Console()
    console.print(f"{version}; Python {platform.python_version()}; {os.cpu_count()} processors\n")
    rates = Table(
        "per second", "ours", "yardstick", "ratio", "goal", title="Side by side, median of the rounds"
    )
    for figure in figures.values():
        match figure:
            case Comparison():
                rates.add_row(
                    figure.what,
                    _spread(figure.ours),
                    _spread(figure.yardstick),
                    f"{figure.ratio:.2f}x",
                    "" if figure.goal is None else f">= {figure.goal:g}x",
                )
            case (
                Latency()
                | FirstStatus()
                | Outage()
                | Simulating()
                | MeanWaits()
                | Jobs()
                | LargeCheckouts()
                | Executors()
                | HandedOn()
                | WholeLoads()
            ):
                console.print(figure.summary)
            case list():
                console.print(_claims(figure))
            case _:
                for service, cost in figure.items():
                    console.print(
                        f"{service}, idle: {cost.cpu_percent:.2f} % of a core, {cost.mebibytes:.0f} MiB resident"
                    )
    if rates.row_count:
        console.print(rates)
    for figure in figures.values():
        if isinstance(figure, Comparison) and figure.note:
            console.print(figure.note)


def _claims(figures: list[Claiming]) -> Table:
    first = figures[0]
    table = Table(
        "store",
        f"claims of {claiming.BATCH}",
        "ours",
        "beside",
        "ratio",
        "goal",
        title="Claimed and finished",
        caption=f"a full store has {first.finished:,} finished and {first.waiting:,} waiting jobs; "
        "bare SQL writes the same rows and decides nothing",
    )
    for figure in figures:
        table.add_row(
            figure.store,
            "jobs/s",
            _spread(figure.per_second),
            f"{_spread(figure.bare)} bare SQL" if figure.bare else "",
            f"{figure.of_bare:.2f}x" if figure.of_bare else "",
            f">= {claiming.RATE_GOAL:,.0f}/s" if figure.bare else "",
        )
        table.add_row(
            figure.store,
            "one, full store",
            f"{statistics.median(figure.full_ms):.1f} ms",
            f"{statistics.median(figure.empty_ms):.1f} ms empty",
            f"{figure.ratio:.2f}x",
            f"<= {claiming.COST_GOAL:.1f}x",
        )
    return table


def _spread(rates: list[float]) -> str:
    ordered = sorted(rates)
    return f"{ordered[len(ordered) // 2]:,.0f} ({ordered[0]:,.0f} to {ordered[-1]:,.0f})"


def _plain(figure: Figures) -> object:
    match figure:
        case Comparison():
            return {**asdict(figure), "ratio": figure.ratio}
        case (
            Latency()
            | FirstStatus()
            | Outage()
            | Simulating()
            | MeanWaits()
            | Jobs()
            | LargeCheckouts()
            | Executors()
            | HandedOn()
            | WholeLoads()
        ):
            return asdict(figure)
        case list():
            return [{**asdict(each), "of_bare": each.of_bare, "ratio": each.ratio} for each in figure]
        case _:
            return {name: asdict(each) for name, each in figure.items()}


if __name__ == "__main__":
    app()
