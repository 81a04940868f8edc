"""`./just demo`: one real commit through the whole line, each stop checked.

Everything happens on this machine, in a temporary folder: `solstice up` as a process of its own, a repository made from
this checkout, a signed Forgejo webhook, the job's log, the status message, the page.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import httpx2
import orjson
import typer
from rich.console import Console
from rich.markup import escape
from solstice_common import commandline
from solstice_common.api_client import Document, OrchestratorClient
from solstice_common.broker import open_broker
from solstice_common.delivery import Ack
from solstice_common.following import follow_run
from solstice_common.messages import JobStatusV1, Source
from solstice_common.topology import STATUSES

from solstice_cli.deliveries import Change, signed_delivery
from solstice_cli.stops import StopFailed, Stops, Unexpected
from solstice_cli.up import UpSettings

CHECKOUT: Final = Path(__file__).resolve().parents[3]
WORKFLOW: Final = ".solstice/workflow.kdl"
BRANCH: Final = "refs/heads/main"
GRACE_SECONDS: Final = 15.0
LOG_TAIL_LINES: Final = 15
LOG_LINE_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """What `solstice up --json` told when it was ready."""

    page: str
    webhooks: str
    broker: str
    secret: str


def demo(
    checkout: Annotated[Path, typer.Option(help="The repository whose newest commit is built.")] = CHECKOUT,
) -> None:
    """Build a real commit through the whole line; exits 1 and names the stop when one failed."""
    console = Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="solstice-demo-"))
    began = time.monotonic()
    console.print("[bold]Solstice CI[/bold]: one commit through the whole line\n")
    try:
        run = asyncio.run(_line(Stops(console), folder, checkout))
    except StopFailed as failed:
        console.print(f"\n[bold red]{escape(str(failed))}[/bold red]", soft_wrap=True)
        _print_tail(console, folder / "up.log")
        raise typer.Exit(commandline.Exit.FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    console.print(
        f"\n[bold green]The commit {run['commit_sha'][:10]} was built[/bold green], {len(run['jobs'])} jobs, "
        f"in {time.monotonic() - began:.1f} s.\n\n"
        f"Look at it:    SOLSTICE_HOME={shlex.quote(str(folder / 'state'))} ./just up\n"
        f"               http://127.0.0.1:8081/runs/{run['run_id']}\n"
        f"Do it by hand: ./just up, and what it says\n",
        soft_wrap=True,
    )


async def _line(stops: Stops, folder: Path, checkout: Path) -> Document:
    async with contextlib.AsyncExitStack() as opened:
        async with stops.stop("solstice up answers", limit_seconds=30):
            up = await opened.enter_async_context(_solstice_up(folder))
        async with stops.stop("a repository was made from this checkout", limit_seconds=60):
            change = await _repository(checkout, folder / "repositories" / "solstice-ci.git")
        async with stops.stop("the signed webhook of a push was kept: 202", limit_seconds=10):
            request_id = await _push(up, change)
        api = await opened.enter_async_context(OrchestratorClient.open(up.page))
        async with stops.stop("the request became a run", limit_seconds=20):
            while (run := await api.run_of_request(request_id)) is None:  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.05)
        stops.console.print()
        async with stops.stop("its jobs succeeded", limit_seconds=60):
            run = await follow_run(
                api, run["run_id"], _write_log, label="     {:>8} │ ".format, terminal=sys.stdout.isatty()
            )
            stops.console.print()
            if run["state"] != "succeeded":
                ends = ", ".join(f"{job['name']} {job['state']}" for job in run["jobs"])
                raise Unexpected(f"the run ended as {run['state']} {run['detail']} ({ends})")
        async with stops.stop("jobstatus.v1 tells it on the statuses queue", limit_seconds=20):
            await _final_status(up.broker, run)
        async with stops.stop("the page shows it", limit_seconds=10):
            await _page(f"{up.page}/runs/{run['run_id']}", run)
        async with stops.stop("solstice up ended when it was asked to", limit_seconds=GRACE_SECONDS + 5):
            await opened.aclose()
        return run


@asynccontextmanager
async def _solstice_up(folder: Path) -> AsyncIterator[Up]:
    """`solstice up` in a process of its own, on free ports; leaving ends it by its id."""
    # What this person has set for real services is not for the demo.
    settings = {name.upper() for name in UpSettings.model_fields}
    environment = {name: value for name, value in os.environ.items() if name.upper() not in settings}
    environment["SOLSTICE_HOME"] = str(folder / "state")
    with (folder / "up.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "solstice_cli",
                "up",
                "--json",
                "--forge-port",
                "0",
                "--orchestrator-port",
                "0",
            ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=log,
            env=environment,
        )
    try:
        yield await _told(process)
    except BaseException:
        await _end(process)
        raise
    if code := await _end(process):
        raise Unexpected(f"it ended with exit code {code}")


async def _told(process: Process) -> Up:
    """The line of JSON that `solstice up` prints once it is ready."""
    line = await process.stdout.readline() if process.stdout else b""
    if not line:
        raise Unexpected(f"it ended at once, with exit code {await process.wait()}")
    told = orjson.loads(line)
    secrets = orjson.loads(await asyncio.to_thread(Path(told["secrets"]).read_bytes))
    return Up(
        page=told["page"],
        webhooks=told["webhooks"],
        broker=told["broker"],
        secret=secrets[Source.FORGEJO.value],
    )


async def _end(process: Process) -> int:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
    return await process.wait()


async def _repository(checkout: Path, bare: Path) -> Change:
    """A bare repository whose branch `main` is the newest commit of the checkout."""
    bare.parent.mkdir(parents=True)
    sha = await _git("-C", str(checkout), "rev-parse", "--verify", "HEAD")
    try:
        await _git("-C", str(checkout), "cat-file", "-e", f"{sha}:{WORKFLOW}")
    except Unexpected:
        raise Unexpected(f"the newest commit, {sha[:10]}, has no {WORKFLOW}: commit one") from None
    await _git("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    await _git(
        "-C",
        str(bare),
        "fetch",
        "--quiet",
        "--no-tags",
        "--update-shallow",
        str(checkout),
        f"+{sha}:{BRANCH}",
    )
    return Change(repo_url=bare.as_uri(), repo_full_name="demo/solstice-ci", ref=BRANCH, commit_sha=sha)


async def _git(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "git", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE
    )
    out, problem = await process.communicate()
    if process.returncode:
        raise Unexpected(f"git {' '.join(arguments)}: {problem.decode(errors='replace').strip()}")
    return out.decode().strip()


async def _push(up: Up, change: Change) -> str:
    """Send the webhook; returns the id of the request that was made of it."""
    delivery = signed_delivery(
        Source.FORGEJO, "push", change, secret=up.secret, delivery_id=str(uuid.uuid4()), now=time.time()
    )
    response = await _http(
        "POST", f"{up.webhooks}/forgejo", content=delivery.body, headers=dict(delivery.headers)
    )
    if response.status_code != httpx2.codes.ACCEPTED:
        raise Unexpected(f"{response.status_code} {response.text}")
    answer = response.json()
    if answer["decision"] != "accepted":
        raise Unexpected(f"{answer['decision']}: {answer['reason']}")
    (request_id,) = answer["request_ids"]
    return str(request_id)


async def _final_status(broker_url: str, run: Document) -> None:
    """Take status messages from the queue until the one about the end of the whole run."""
    async with open_broker(broker_url, name="demo") as broker:
        await broker.ready(5.0)
        async with broker.consume(STATUSES.queue, prefetch=64) as consumer:
            while True:
                deliveries = await consumer.batch()
                await consumer.settle([(delivery, Ack()) for delivery in deliveries])
                statuses = [JobStatusV1.decode(delivery.body) for delivery in deliveries]
                for status in statuses:
                    if (
                        status.run_id == run["run_id"]
                        and status.job_id is None
                        and status.state == run["state"]
                    ):
                        return


async def _page(url: str, run: Document) -> None:
    response = await _http("GET", url)
    if response.status_code != httpx2.codes.OK:
        raise Unexpected(f"{url} answered {response.status_code}")
    if run["commit_sha"][:7] not in response.text:
        raise Unexpected(f"{url} does not name the commit {run['commit_sha'][:7]}")


async def _http(
    method: str, url: str, *, content: bytes | None = None, headers: dict[str, str] | None = None
) -> httpx2.Response:
    try:
        # No proxy of the environment: it is all on this machine.
        async with httpx2.AsyncClient(timeout=10.0, trust_env=False) as http:
            return await http.request(method, url, content=content, headers=headers)
    except httpx2.HTTPError as error:
        raise Unexpected(f"{url}: {str(error) or type(error).__name__}") from error


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
    """`python -m solstice_cli.demo`."""
    app = typer.Typer(context_settings=commandline.CONTEXT_SETTINGS, add_completion=False)
    app.command()(demo)
    commandline.run(app)


if __name__ == "__main__":
    main()
