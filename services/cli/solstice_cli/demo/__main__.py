"""`./just demo`: one real commit through the whole line, each stop checked.

Everything happens on this machine, in a temporary folder: `solstice up` as a process of its own, a repository made from
this checkout, a signed Forgejo webhook, the job's log, the status message, the page. `./just demo-containers` does so
with the project of `docs/examples/guestbook`, in containers.
"""

import asyncio
import contextlib
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from solstice_cli.demo.container_project import container_project
from solstice_cli.demo.stop_actions import (
    GRACE_SECONDS,
    final_status,
    make_repository,
    push,
    see_page,
    solstice_up,
    unfinished,
)
from solstice_cli.demo.stops import StopFailed, Stops, Unexpected
from solstice_common.cli import program
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.following import follow_run
from solstice_common.messages.states import RunState

CHECKOUT: Final = Path(__file__).resolve().parents[4]
LOG_TAIL_LINES: Final = 15
LOG_LINE_CHARACTERS: Final = 500


def demo(
    checkout: Annotated[Path, typer.Option(help="The repository whose newest commit is built.")] = CHECKOUT,
    patience: Annotated[float, typer.Option(min=0, help="Seconds that its jobs may take.")] = 60.0,
    *,
    containers: Annotated[
        bool, typer.Option("--containers", help="Build a project of its own in containers, with a service.")
    ] = False,
) -> None:
    """Build a real commit through the whole line.

    Exits 1 and names the stop when one failed.
    """
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="solstice-demo-"))
    began = time.monotonic()
    console.print("[bold]Solstice CI[/bold]: one commit through the whole line\n")
    try:
        run = asyncio.run(_demonstrate(Stops(console), folder, checkout, patience, containers=containers))
    except StopFailed as failed:
        console.print(f"\n[bold red]{escape(str(failed))}[/bold red]", soft_wrap=True)
        _print_tail(console, folder / "up.log")
        raise typer.Exit(program.Exit.FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(program.Exit.INTERRUPTED) from None
    console.print(
        f"\n[bold green]The commit {run['commit_sha'][:10]} was built[/bold green], {len(run['jobs'])} jobs, "
        f"in {time.monotonic() - began:.1f} s.\n\n"
        f"Look at it:    SOLSTICE_HOME={shlex.quote(str(folder / 'state'))} ./just up\n"
        f"               http://127.0.0.1:8081/runs/{run['run_id']}\n"
        f"Do it by hand: ./just up, and what it says\n",
        soft_wrap=True,
    )


async def _demonstrate(
    stops: Stops, folder: Path, checkout: Path, timeout_seconds: float, *, containers: bool
) -> Document:
    if not containers:
        return await _pass_stops(stops, folder, checkout, {}, timeout_seconds)
    async with container_project(stops, folder) as project:
        return await _pass_stops(stops, folder, project.checkout, project.settings, timeout_seconds)


async def _pass_stops(
    stops: Stops, folder: Path, checkout: Path, settings: Mapping[str, str], timeout_seconds: float
) -> Document:
    async with contextlib.AsyncExitStack() as opened:
        async with stops.stop("solstice up answers", limit_seconds=30):
            up = await opened.enter_async_context(solstice_up(folder, settings))
        async with stops.stop("a repository was made from this checkout", limit_seconds=60):
            name = "solstice-ci" if checkout == CHECKOUT else checkout.name
            change = await make_repository(checkout, folder / "repositories" / f"{name}.git")
        async with stops.stop("the signed webhook of a push was stored: 202", limit_seconds=10):
            request_id = await push(up, change)
        api = await opened.enter_async_context(OrchestratorClient.open(up.page))
        async with stops.stop("the request became a run", limit_seconds=20):
            while (run := await api.run_of_request(request_id)) is None:  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.05)
        stops.console.print()
        run_id = run["run_id"]
        async with stops.stop(
            "its jobs succeeded", limit_seconds=timeout_seconds, why_late=lambda: unfinished(api, run_id)
        ):
            run = await follow_run(
                api, run_id, _write_log, label="     {:>8} │ ".format, terminal=sys.stdout.isatty()
            )
            stops.console.print()
            if run["state"] != RunState.SUCCEEDED:
                ends = ", ".join(f"{job['name']} {job['state']}" for job in run["jobs"])
                raise Unexpected(f"the run ended as {run['state']} {run['detail']} ({ends})")
        async with stops.stop("its jobstatus.v1 is on the statuses queue", limit_seconds=20):
            await final_status(up.broker, run)
        async with stops.stop("the page shows it", limit_seconds=10):
            await see_page(f"{up.page}/runs/{run['run_id']}", run)
        async with stops.stop("solstice up ended when it was asked to", limit_seconds=GRACE_SECONDS + 5):
            await opened.aclose()
        return run


def _write_log(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _print_tail(console: Console, log: Path) -> None:
    if log.exists():
        tail = log.read_text("utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        console.print(f"\nThe end of {log}:", style="dim")
        for line in tail:
            console.print(line[:LOG_LINE_CHARACTERS], markup=False, soft_wrap=True)


def main() -> None:
    """`python -m solstice_cli.demo.__main__`."""
    app = typer.Typer(context_settings=program.CONTEXT_SETTINGS, add_completion=False)
    app.command()(demo)
    program.run(app)


if __name__ == "__main__":
    main()
