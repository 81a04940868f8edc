"""Carries out the stops of the demo.

They use a real process, repository, webhook, consumer and reader.
"""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import httpx2
import orjson

from solstice_cli.demo.deliveries import RefChange, signed_delivery
from solstice_cli.demo.stops import Unexpected
from solstice_cli.up import UpSettings
from solstice_common.broker import open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.local_repository import git_environment
from solstice_common.messages import JobStatusV1, Source
from solstice_common.topology import STATUSES
from solstice_orchestrator.processes.children import child, exit_code, pipe_reader, start, wait_for_exit

WORKFLOW: Final = ".solstice/workflow.kdl"
BRANCH: Final = "refs/heads/main"
GRACE_SECONDS: Final = 15.0
UP: Final = (sys.executable, "-m", "solstice_cli", "up")

Process: TypeAlias = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """The output of `solstice up --json` when it was ready."""

    page: str
    webhooks: str
    broker: str
    secret: str


def environment_of_up(environ: Mapping[str, str], state: Path) -> dict[str, str]:
    """Return the environment without this person's settings for real services."""
    settings = {name.upper() for name in UpSettings.model_fields}
    own = {name: value for name, value in environ.items() if name.upper() not in settings}
    # A person watches: the jobs start even when this machine is busy.
    return {**own, "SOLSTICE_HOME": str(state), "GOVERNOR": "off"}


@asynccontextmanager
async def solstice_up(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Up]:
    """`solstice up` in a process of its own, on free ports, with these settings.

    Leaving ends it by its id.
    """
    environment = {**environment_of_up(os.environ, folder / "state"), **settings}
    with (folder / "up.log").open("wb") as log:
        process = start(
            (*UP, "--json", "--forge-port", "0", "--orchestrator-port", "0"),
            Path(),
            environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        with pipe_reader(process.stdout) as ready:
            yield await _ready_message(process, ready)
    except BaseException:
        await _end(process)
        raise
    if code := await _end(process):
        raise Unexpected(f"it ended with exit code {code}")


async def _ready_message(process: Process, output: asyncio.StreamReader) -> Up:
    """Return the line of JSON that `solstice up` prints once it is ready."""
    line = await output.readline()
    if not line:
        raise Unexpected(f"it ended at once, with exit code {await exit_code(process)}")
    ready = orjson.loads(line)
    secrets = orjson.loads(await asyncio.to_thread(Path(ready["secrets"]).read_bytes))
    return Up(
        page=ready["page"],
        webhooks=ready["webhooks"],
        broker=ready["broker"],
        secret=secrets[Source.FORGEJO.value],
    )


async def _end(process: Process) -> int:
    process.terminate()
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await exit_code(process)
    except TimeoutError:
        process.kill()
    return await wait_for_exit(process)


async def make_repository(checkout: Path, bare: Path) -> RefChange:
    """Return a bare repository whose branch `main` is the newest commit of the checkout."""
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
    return RefChange(repo_url=bare.as_uri(), repo_full_name=f"demo/{bare.stem}", ref=BRANCH, commit_sha=sha)


async def _git(*arguments: str) -> str:
    async with child(("git", *arguments), Path(), git_environment(), b"") as git:
        out, problem = await asyncio.gather(git.stdout.read(), git.stderr.read())
        failed = await git.wait()
    if failed:
        raise Unexpected(f"git {' '.join(arguments)}: {problem.decode(errors='replace').strip()}")
    return out.decode().strip()


async def push(up: Up, change: RefChange) -> str:
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


async def unfinished(api: OrchestratorClient, run_id: str) -> str:
    """Return the unfinished jobs of a run, and why they wait."""
    jobs = [job for job in (await api.run(run_id))["jobs"] if job["finished_at"] is None]
    reasons = [(job["name"], (await api.why_job(job["job_id"]))["why"]) for job in jobs]
    return "; ".join(
        f"{name} runs" if why is None else f"{name} waits: {why['detail']}" for name, why in reasons
    )


async def final_status(broker_url: str, run: Document) -> None:
    """Take status messages from the queue until the run's last one."""
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


async def see_page(url: str, run: Document) -> None:
    response = await _http("GET", url)
    if response.status_code != httpx2.codes.OK:
        raise Unexpected(f"{url} answered {response.status_code}")
    if run["commit_sha"][:7] not in response.text:
        raise Unexpected(f"{url} does not name the commit {run['commit_sha'][:7]}")


async def _http(
    method: str, url: str, *, content: bytes | None = None, headers: dict[str, str] | None = None
) -> httpx2.Response:
    try:
        # Without the environment's proxy: everything is on this machine.
        async with httpx2.AsyncClient(timeout=10.0, trust_env=False) as http:
            return await http.request(method, url, content=content, headers=headers)
    except httpx2.HTTPError as error:
        raise Unexpected(f"{url}: {str(error) or type(error).__name__}") from error
