"""Attacks on running services do not stop the genuine webhooks beside them."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages import Source
from solstice_common.runtime.public_interfaces import public_only
from solstice_forge.forges.samples import push_body, sign
from tests.chaos import attacker
from tests.chaos.attacker import MOST_CONNECTIONS, Attack
from tests.integration.forge.pushes import REPO_URL, SECRET
from tests.polling import wait_until
from tests.raw_http import address, open_files, peak_mib, seconds_queued, status_code
from tests.servers.forge_integration import FRESH_FORGE, forge_integration
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, SharedFiles, orchestrator
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.servers.solstice_up import solstice_up

pytestmark = pytest.mark.alone

BREAK_SECONDS = 0.1
"""Between two genuine webhooks."""
ATTACK_SECONDS = 2.0
ANSWER_SECONDS = 1.0
MOST_MIB = 256
SPARE_FILES = 16
"""Links to servers and pipes of children that come and go by themselves."""
HEAD_TOO_LARGE = "400" if public_only("uvicorn") else "431"
"""uvicorn's own protocol has one answer for every head that it refuses."""
KINDS: Mapping[str, str] = {
    "silence": "",
    "dripping-heads": "",
    "endless-heads": HEAD_TOO_LARGE,
    "endless-field": HEAD_TOO_LARGE,
    "trailers": HEAD_TOO_LARGE,
    "unsigned-bodies": "401",
    "signed-bodies-cut-short": "503",
}
"""The kinds of attack, and the answers; none, when the attacker has not sent enough for an answer."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One genuine webhook."""

    status: int
    seconds: float
    """From its connection to the end of its answer."""
    queued_seconds: float
    """How long the service or the sender was ready to run while the machine ran other processes.

    On a quiet machine this is close to zero; on a busy one it does not depend on the service.
    """

    @property
    def own_seconds(self) -> float:
        return self.seconds - self.queued_seconds


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Sends genuine webhooks at a steady rate, whether or not the ones before were answered."""

    url: str
    secret: str
    pid: int
    """Of the service."""
    answered: list[Answered] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as under_way:
            while not stop.is_set():
                under_way.create_task(self._send(next(self.numbers)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), BREAK_SECONDS)

    async def _send(self, number: int) -> None:
        before, began = self._queued(), time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(*address(self.url))
            writer.write(self._webhook(number))
            answer = await reader.read()
            writer.close()
        except OSError:
            answer = b""
        self.answered.append(
            Answered(
                status=status_code(answer),
                seconds=time.monotonic() - began,
                queued_seconds=self._queued() - before,
            )
        )

    def _queued(self) -> float:
        return seconds_queued(self.pid) + seconds_queued(os.getpid())

    def _webhook(self, number: int) -> bytes:
        body = push_body(
            Source.FORGEJO,
            repo_url=REPO_URL,
            repo_full_name="tide-club/almanac",
            ref="refs/heads/main",
            sha=f"{number:040x}",
        )
        headers = sign(Source.FORGEJO, self.secret, event="push", body=body, delivery_id=f"d-{number}", now=0)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        return f"POST /webhooks/forgejo HTTP/1.1\r\nHost: h\r\n{lines}{length}\r\n".encode() + body


@asynccontextmanager
async def sending(sender: Sender) -> AsyncIterator[None]:
    """Send genuine webhooks until the block is left; the answers to all of them."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sender.run(stop), name="genuine webhooks")
        try:
            yield
        finally:
            stop.set()


async def attacked(attack: Attack) -> dict[str, Any]:
    """Run the attack in a process of its own; return its result."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, attacker.__file__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(json.dumps(asdict(attack)).encode())
    assert process.returncode == 0
    done: dict[str, Any] = json.loads(output)
    return done


async def withstands(sender: Sender, pids: Sequence[int], page: str) -> None:
    """Attack both services in every way, and check their promises."""
    targets = ((address(sender.url)[1], "/webhooks/forgejo"), (address(page)[1], "/api/v1/schedules"))
    async with sending(sender):
        await wait_until(lambda: len(sender.answered) >= 10)
    before = [open_files(pid) for pid in pids]
    sender.answered.clear()
    for kind, status in KINDS.items():
        attack = Attack(
            kind=kind,
            targets=targets,
            connections=MOST_CONNECTIONS,
            seconds=ATTACK_SECONDS,
            secret=sender.secret,
            awaited=status,
        )
        begun = len(sender.answered)
        async with sending(sender):
            done = await attacked(attack)
        print_result(kind, done, sender.answered[begun:], pids)
        # The attack was one.
        assert done["most_open"] == MOST_CONNECTIONS
        assert not status or done["statuses"].get(status, 0) > 0, done
    assert {answered.status for answered in sender.answered} == {202}
    assert max(answered.own_seconds for answered in sender.answered) < ANSWER_SECONDS
    assert max(peak_mib(pid) for pid in pids) < MOST_MIB
    for pid, count in zip(pids, before, strict=True):
        await wait_until(lambda pid=pid, count=count: open_files(pid) <= count + SPARE_FILES)  # type: ignore[misc]  # mypy infers no lambda with a default


def print_result(
    kind: str, done: Mapping[str, Any], answered: Sequence[Answered], pids: Sequence[int]
) -> None:
    """Print a result for the reader of the test's output."""
    slowest, own = max(each.seconds for each in answered), max(each.own_seconds for each in answered)
    memory = [round(peak_mib(pid)) for pid in pids]
    sys.stdout.write(
        f"{kind}: {done}; of {len(answered)} webhooks the slowest {slowest:.3f} s, {own:.3f} s without what the machine"
        f" ran instead; {memory} MiB\n"
    )


@pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session")
async def test_both_services_on_rabbitmq_and_postgresql_withstand_strangers(
    rabbitmq_vhost: Vhost, postgresql: PostgreSQLServer, tmp_path: Path
) -> None:
    shared_files = SharedFiles(directory=tmp_path)
    with (
        postgresql.database() as inbox,
        postgresql.database() as store,
        orchestrator(
            shared_files, start=FRESH_ORCHESTRATOR, AMQP_URL=rabbitmq_vhost.url, DATABASE_URL=store.url
        ) as runs,
        forge_integration(
            shared_files,
            start=FRESH_FORGE,
            AMQP_URL=rabbitmq_vhost.url,
            FORGE_INBOX_URL=inbox.url,
            FORGEJO_WEBHOOK_SECRET=SECRET,
        ) as takes,
    ):
        sender = Sender(url=takes.url, secret=SECRET, pid=takes.process.pid)
        await withstands(sender, [takes.process.pid, runs.process.pid], runs.url)
        (stored,) = inbox.query("SELECT count(*) FROM inbox_requests")
        assert tuple(stored) == (next(sender.numbers) - 1,)
        for service in (takes, runs):
            assert not [event for event in service.events if "Traceback" in str(event)]


async def test_solstice_up_withstands_strangers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with solstice_up(home, fresh=True) as up:
        secret = json.loads((home / "webhook-secrets.json").read_text())["forgejo"]
        sender = Sender(url=up.webhooks, secret=secret, pid=up.process.pid)
        await withstands(sender, [up.process.pid], up.page)
    assert "Traceback" not in (home / "up.log").read_text()
