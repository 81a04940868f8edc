"""`./just soak`: runs many tiny jobs, and checks that nothing remains of them."""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from tests.soak import deployments, verdict
from tests.soak.load import PAGE, Load, Stuck, tiny_jobs
from tests.soak.readings import Watch

RUN_SIZE = PAGE
TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 30.0
PREPARED_CHILDREN = {"orchestrator": 1, "solstice up": 1}
"""The process from which supervisors are forked, which stays while no job runs."""

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def soak(
    jobs: Annotated[int, typer.Option(min=1, help="How many, rounded up to whole runs.")] = 20_000,
    run_size: Annotated[int, typer.Option(min=1, max=PAGE, help="Jobs of a run.")] = RUN_SIZE,
    *,
    services: Annotated[
        bool,
        typer.Option(
            "--services",
            help="Both services on a RabbitMQ and a PostgreSQL of their own, instead of solstice up.",
        ),
    ] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds from one reading to the next.")] = 1.0,
    directory: Annotated[
        Path | None, typer.Option(help="Work here and leave it; otherwise in a temporary one.")
    ] = None,
) -> None:
    """Run tiny jobs and watch the services; exit 1 on any problem."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        directory.mkdir(parents=True, exist_ok=True)
        troubles = run(directory, -(-jobs // run_size), run_size, services=services, every=every)
    for trouble in troubles:
        _print_line(f"WRONG: {trouble}")
    _print_line(f"verdict: {'wrong' if troubles else 'nothing was left behind'}")
    raise typer.Exit(1 if troubles else 0)


def run(directory: Path, runs: int, run_size: int, *, services: bool, every: float) -> list[str]:
    """Run one soak; return the problems."""
    expected, troubles = runs * run_size, list[str]()
    project = tiny_jobs(directory / "tiny", run_size)
    begun = time.monotonic()

    def progress(ended: int) -> None:
        readings = (f"{name} {series[-1].descriptors} descriptors" for name, series in watch.readings.items())
        _print_line(f"{time.monotonic() - begun:7.0f} s {ended * run_size:6} jobs; {', '.join(readings)}")

    with (
        (deployments.services if services else deployments.embedded)(directory) as deployment,
        httpx2.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client,
    ):
        watch, load = Watch(pids=deployment.pids), Load(deployment, project, client)
        with watch.running(every):
            try:
                load.run(runs, progress)
            except Stuck as stuck:
                troubles.append(str(stuck))
        seconds = time.monotonic() - begun
        troubles += verdict.of_jobs(expected, load.jobs())
        troubles += _left(deployment)
    # Include the last events.
    for name, events in deployment.events().items():
        troubles += verdict.of_events(name, events)
        if "forge" not in name:
            troubles += verdict.of_log(expected, events)
    troubles += [f"{name} ended" for name in watch.gone]
    if left := [path.name for path in deployment.workspaces.glob("*") if path.is_dir()]:
        troubles.append(f"{len(left)} directories are left in {deployment.workspaces}: {left[:5]}")
    _print_line(f"{expected} jobs in {seconds:.0f} s")
    for name, readings in watch.readings.items():
        troubles += verdict.of_readings(name, readings)
        for what, series in (
            ("descriptors", [reading.descriptors for reading in readings]),
            ("MiB", [reading.mebibytes for reading in readings]),
            ("children", [reading.children for reading in readings]),
            ("zombies", [len(reading.zombies) for reading in readings]),
        ):
            found = verdict.figures(series)
            _print_line(
                f"{name}: {what} first {found.first:g}, last {found.last:g}, largest {found.largest:g}"
            )
    return troubles


def _left(deployment: deployments.Deployment) -> list[str]:
    """Children that the services still have when they are idle."""
    after, deadline = Watch(pids=deployment.pids), time.monotonic() + SETTLE_SECONDS
    while True:
        after.read_all(time.monotonic())
        having = [
            name
            for name, readings in after.readings.items()
            if readings[-1].children > PREPARED_CHILDREN.get(name, 0)
        ]
        if not having or time.monotonic() > deadline:
            return [
                f"{name} has {after.readings[name][-1].children} children, with no job" for name in having
            ]
        time.sleep(1)


def _print_line(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
