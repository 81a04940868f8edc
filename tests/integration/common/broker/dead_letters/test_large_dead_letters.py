"""Large dead letters are listed, shown, replayed, dropped, exported and imported, and never held."""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from subprocess import run as run_to_its_end
from typing import Any, Final

import httpx2
import pytest
import redis

from solstice_common.broker import Broker, Message, open_dead_letter_queues
from solstice_common.broker.dead_letters.hashed_bodies import HEAD_BYTES
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from tests.brokers import EMBEDDED, broker_url, pytest_generate_tests
from tests.browsing import browse
from tests.contract.test_broker import drain
from tests.dead_letter_replays import environment
from tests.raw_http import peak_in, peak_mib
from tests.servers.orchestrator import FRESH_ORCHESTRATOR, SharedFiles, orchestrator
from tests.servers.versions import NATS, REDIS
from tests.traffic import connected, wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]

BODY_BYTES: Final = 15 << 20
"""Just below the largest message that RabbitMQ 4.0 takes."""
NATS_BODY_BYTES: Final = 7 << 20
"""Just below `max_payload` of the test's server."""
COUNT: Final = int(os.environ.get("LARGE_DEAD_LETTERS", "4"))
MOST_MIB: Final = 200
"""For who holds no large body; all of them would need more."""
MOST_MIB_OF_ONE: Final = 256
"""For who holds one at a time, as a line of JSON, too."""
DLQ: Final = jobs_route(BrokerSettings()).dlq
LIST: Final = "/api/v1/dead-letters"


def large_body(number: int, size: int) -> bytes:
    """Bytes that no two numbers share."""
    return random.Random(number).randbytes(size)


async def fill(broker: Broker, url: str, kind: str) -> list[bytes]:
    """Write large messages to the dead-letter queue; return the first bytes of each."""
    size, route = NATS_BODY_BYTES if kind == NATS else BODY_BYTES, jobs_route(BrokerSettings())
    beginnings = []
    for number in range(COUNT):
        body = large_body(number, size)
        beginnings.append(body[:100])
        if kind == REDIS:
            with redis.Redis.from_url(url) as client:
                client.xadd(DLQ, {"body": body})
            continue
        message = Message(exchange=route.dlx, routing_key=route.routing_key, body=body, type="jobrequest.v1")
        (outcome,) = await broker.publish([message])
        assert outcome.confirmed, outcome
    await wait_for_ready(broker, DLQ, COUNT)
    return beginnings


async def listed(http: httpx2.AsyncClient) -> list[dict[str, Any]]:
    """The list, asked again while another viewer is served."""
    while True:
        answer = await http.get(LIST)
        if answer.status_code == 200:
            return list(answer.json()["dead_letters"])
        assert answer.status_code == 503, answer.text


async def view(http: httpx2.AsyncClient, path: str) -> None:
    """See one of them, or a list, as a person does."""
    while (answer := await http.get(path)).status_code == 503:
        pass  # others are served
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < 1 << 20, path


MEASURED: Final = """
import atexit, pathlib, runpy, sys
status = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: status.write_text(pathlib.Path("/proc/self/status").read_text()))
runpy.run_module("solstice_cli", run_name="__main__", alter_sys=True)
"""
"""Runs the command, and writes its memory to a file: `ru_maxrss` would contain ours, from before its exec."""


def command(url: str, *words: str, directory: Path) -> tuple[Any, float]:
    """What `solstice dlq WORDS --json` prints, and the most memory it had in MiB."""
    status = directory / "status"
    done = run_to_its_end(
        [sys.executable, "-c", MEASURED, status, "dlq", *words, "--json"],
        env=environment(url),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), peak_in(status.read_text())


@pytest.mark.timeout(300)
async def test_viewers_of_large_dead_letters_do_not_make_a_service_hold_them(
    broker_url: str, broker_kind: str, tmp_path: Path
) -> None:
    async with connected(broker_url, topology=full_topology(BrokerSettings())) as broker:
        beginnings = await fill(broker, broker_url, broker_kind)
        with orchestrator(
            SharedFiles(directory=tmp_path), start=FRESH_ORCHESTRATOR, AMQP_URL=broker_url
        ) as process:
            async with httpx2.AsyncClient(base_url=process.url, timeout=120, trust_env=False) as http:
                first = await listed(http)
                assert len(first) == COUNT
                assert len({each["id"] for each in first}) == COUNT
                paths = [
                    f"{LIST}/{first[0]['id']}",
                    f"/dead-letters/{first[1]['id']}",
                    "/dead-letters/list?reason=oversize",
                    "/dead-letters",
                ]
                await asyncio.gather(*(view(http, path) for path in paths))
                replayed = await http.post(f"{LIST}/{first[0]['id']}/replay")
                assert (replayed.status_code, replayed.json()["error"]["code"]) == (409, "not_replayable")
                assert await listed(http) == first, "nothing has changed"
                # Of those that died at the same moment, the API lists the lowest id first.
                async with open_dead_letter_queues(broker_url, name="test") as queues:
                    last = (await browse(queues.queue(DLQ), COUNT))[-1].id
                assert (await http.post(f"{LIST}/{last}/drop")).status_code == 202
                assert await listed(http) == [each for each in first if each["id"] != last]
            peak = peak_mib(process.process.pid)
        async with open_dead_letter_queues(broker_url, name="test") as queues:
            found = await browse(queues.queue(DLQ), COUNT)
        print(f"\n{broker_kind}: peak {peak:.0f} MiB, {COUNT} large dead letters")  # noqa: T201  the figure
        assert peak < MOST_MIB
        assert [each.body[:100] for each in found] == beginnings[:-1], "the order is that of before"
        if broker_kind not in {EMBEDDED, NATS, REDIS}:
            counters = [
                each.headers.get("x-delivery-count", 0) for each in await drain(broker, DLQ, COUNT - 1)
            ]
            assert all(isinstance(each, int) and each <= 6 for each in counters), counters


@pytest.mark.timeout(300)
async def test_the_command_lists_exports_and_imports_large_dead_letters_and_holds_few(
    broker_url: str, broker_kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "dead.jsonl"
    async with connected(broker_url, topology=full_topology(BrokerSettings())) as broker:
        beginnings = await fill(broker, broker_url, broker_kind)
        peaks: dict[str, float] = {}

        async def run(*words: str) -> Any:
            printed, peaks[words[0]] = await asyncio.to_thread(
                command, broker_url, *words, directory=tmp_path
            )
            return printed

        listed = (await run("list"))["dead_letters"]
        assert len(listed) == COUNT
        assert (await run("export", str(file)))["exported"] == COUNT
        dropped = await run("drop", *[each["id"] for each in listed], "--yes")
        assert sorted(dropped["dropped"]) == sorted(each["id"] for each in listed)
        assert (await run("import", str(file)))["queues"][DLQ] == {"added": COUNT, "present": 0, "failed": []}
        shown = await run("show", listed[0]["id"])
        assert shown["body_omitted_bytes"] + HEAD_BYTES == shown["bytes"]
        async with open_dead_letter_queues(broker_url, name="test") as queues:
            found = await browse(queues.queue(DLQ), COUNT)
    print(f"\n{broker_kind}: " + ", ".join(f"{name} {mib:.0f} MiB" for name, mib in peaks.items()))  # noqa: T201  the figures
    assert max(peaks.pop("export"), peaks.pop("import")) < MOST_MIB_OF_ONE
    assert max(peaks.values()) < MOST_MIB
    assert sorted(each.id for each in found) == sorted(each["id"] for each in listed)
    assert sorted(each.body[:100] for each in found) == sorted(beginnings)
