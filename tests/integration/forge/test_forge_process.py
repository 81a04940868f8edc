"""`forge-integration serve` as a process: signals, kills, mistakes at the start."""

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from solstice_common.broker import open_broker
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.integration.forge.conftest import MakeSettings
from tests.integration.forge.pushes import SECRET, number_of, push, received

NO_BROKER = "amqp://127.0.0.1:9/%2f"


@dataclass
class Service:
    process: asyncio.subprocess.Process
    url: str = ""

    async def push(self, number: int) -> int:
        body, headers = push(number)
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{self.url}/webhooks/forgejo", content=body, headers=headers)
            return answer.status_code

    async def end(self, number: signal.Signals) -> tuple[int, list[dict[str, object]]]:
        """Send the signal; the exit code and what was logged since the start."""
        self.process.send_signal(number)
        async with asyncio.timeout(30):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, [json.loads(line) for line in errors.splitlines()]


@asynccontextmanager
async def started(folder: Path, **environment: str) -> AsyncIterator[Service]:
    """Start a service that has printed its address; kill it if the test does not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from solstice_forge.cli import main; main()",
        "serve",
        env={
            "PATH": os.environ["PATH"],
            "FORGE_PORT": "0",
            "FORGE_INBOX_URL": f"sqlite:///{folder / 'inbox.db'}",
            "AMQP_URL": f"sqlite:///{folder / 'broker.db'}",
            "FORGEJO_WEBHOOK_SECRET": SECRET,
            "LOG_FORMAT": "json",
            "FORGE_GRACE_SECONDS": "1",
            **environment,
        },
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    service = Service(process)
    try:
        async with asyncio.timeout(30):
            while not service.url:
                line = await process.stderr.readline()
                assert line.startswith(b"{"), line + await process.stderr.read()
                event = json.loads(line)
                if event["event"] == "forge.started":
                    service.url = f"http://{event['host']}:{event['port']}"
        yield service
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signal_ends_it_with_everything_published(
    tmp_path: Path, make_settings: MakeSettings, number: signal.Signals
) -> None:
    async with started(tmp_path) as service:
        assert [await service.push(one) for one in range(1, 11)] == [202] * 10
        code, logged = await service.end(number)
    assert code == 0
    assert logged[-1]["event"] == "forge.drained"
    assert logged[-1]["pending"] == 0
    settings = make_settings()
    async with open_broker(settings.amqp_url, name="test") as broker:
        assert [number_of(one) for one in await received(broker, settings, 10)] == list(range(1, 11))


async def test_killed_service_has_lost_nothing_that_it_took(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    async with started(tmp_path, AMQP_URL=NO_BROKER) as service:
        assert [await service.push(one) for one in range(1, 11)] == [202] * 10
        code, _ = await service.end(signal.SIGKILL)
        assert code == -signal.SIGKILL
    settings = make_settings()
    async with started(tmp_path) as service, open_broker(settings.amqp_url, name="test") as broker:
        assert [number_of(one) for one in await received(broker, settings, 10)] == list(range(1, 11))
        assert await service.push(3) == 200, "a duplicate also after the kill"


@NEEDS_DISKS
async def test_on_a_full_disk_nothing_is_answered_202_that_is_not_stored(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    numbers = itertools.count(1)
    accepted: list[int] = []

    async def push_until(service: Service, status: int) -> None:
        """Push until the answer is this one: 202 for what is accepted, else 503."""
        async with asyncio.timeout(30):
            answer = None
            while answer != status:
                number = next(numbers)
                answer = await service.push(number)
                assert answer in {202, 503}
                accepted.extend([number] * (answer == 202))

    with mounted_disk(tmp_path / "disk", mib=4) as disk:
        inbox = f"sqlite:///{disk / 'inbox.db'}"
        async with started(tmp_path, FORGE_INBOX_URL=inbox, AMQP_URL=NO_BROKER) as service:
            await push_until(service, 202)
            rest = disk / "rest"
            rest.write_bytes(bytes(shutil.disk_usage(disk).free))
            await push_until(service, 503)
            rest.unlink()
            await push_until(service, 202)
            await service.end(signal.SIGKILL)
        settings = make_settings()
        async with (
            started(tmp_path, FORGE_INBOX_URL=inbox),
            open_broker(settings.amqp_url, name="test") as broker,
        ):
            requests = await received(broker, settings, len(accepted))
    assert [number_of(one) for one in requests] == accepted


async def test_broker_that_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with started(tmp_path, AMQP_URL=NO_BROKER) as service:
        assert await service.push(1) == 202
        code, logged = await service.end(signal.SIGTERM)
    assert code == 0
    assert logged[-1]["pending"] == 1


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("FORGE_PORT", "x", "FORGE_PORT"),
        ("AMQP_URL", "kafka://h", "AMQP_URL"),
        ("GITLAB_SIGNING_TOKEN", "whsec_%", "GITLAB_SIGNING_TOKEN"),
        ("FORGE_HOST", "203.0.113.1", "FORGE_HOST"),
    ],
)
async def test_wrong_setting_is_one_plain_line(tmp_path: Path, name: str, value: str, part: str) -> None:
    code, errors = await failed_start(tmp_path, name, value)
    assert code == 2, errors
    assert part in errors
    assert "Traceback" not in errors


async def test_taken_port_is_one_plain_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        code, errors = await failed_start(tmp_path, "FORGE_PORT", str(bound.getsockname()[1]))
    assert code == 2, errors
    assert "FORGE_PORT" in errors
    assert "Traceback" not in errors


async def failed_start(folder: Path, name: str, value: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from solstice_forge.cli import main; main()",
        "serve",
        env={"PATH": os.environ["PATH"], "FORGE_INBOX_URL": f"sqlite:///{folder / 'inbox.db'}", name: value},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()
