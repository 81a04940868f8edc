"""`forge-integration statuses`: dead letters are shown, and sent once more, on every broker."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from solstice_common.broker import DeadLetter, Message, open_broker, open_dead_letter_queues
from solstice_common.broker.rabbitmq.tools import dead_letter_messages, rabbitmq_dead_letters
from solstice_common.broker.rabbitmq.tools.dead_letter_reader import DeadLetterReader
from solstice_common.messages import JobStatusV1
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.statuses import dead_statuses
from tests.brokers import broker_url, pytest_generate_tests
from tests.servers.forge_integration import START
from tests.servers.forks import run_command
from tests.servers.rabbitmq import Vhost
from tests.servers.service_process import base_environment
from tests.statuses import SHA, job_status
from tests.traffic import connected, drain, wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]

TOPOLOGY = STATUSES.topology(QueueType.QUORUM)


def environment(broker_url: str) -> dict[str, str]:
    return {**base_environment(), "AMQP_URL": broker_url, "COLUMNS": "250"}


def statuses(broker_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("forge-integration", "statuses", *arguments, env=environment(broker_url))


async def publish_dead_letters(broker_url: str, *dead_letters: tuple[str, dict[str, Any]]) -> None:
    async with connected(broker_url, topology=TOPOLOGY) as broker:
        await broker.publish(
            [
                Message(
                    exchange=STATUSES.dlx,
                    routing_key=STATUSES.routing_key,
                    body=job_status("failed", **changes).encode(),
                    type="jobstatus.v1",
                    correlation_id="request",
                    headers={
                        "x-solstice-reason": reason,
                        "x-solstice-detail": "404 Not Found",
                        "x-solstice-attempt": 1,
                        "traceparent": "kept",
                    },
                )
                for reason, changes in dead_letters
            ]
        )


async def test_dead_letters_are_shown_and_stay(broker_url: str) -> None:
    url = broker_url
    assert "no dead letters" in statuses(url, "dead").stdout
    await publish_dead_letters(url, ("not_found", {}), ("forbidden", {"context": "solstice/lint"}))
    shown = statuses(url, "dead")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert [(row[2:4], row[-2:]) for row in rows] == [
        (["river/app", SHA], ["not_found", "404 Not Found"]),
        (["river/app", SHA], ["forbidden", "404 Not Found"]),
    ]
    first, second = json.loads(statuses(url, "dead", "--json").stdout)
    assert (first["reason"], first["repository"], first["commit_sha"]) == ("not_found", "river/app", SHA)
    assert (second["reason"], second["context"], second["state"]) == ("forbidden", "solstice/lint", "failed")
    async with open_broker(url, name="test") as broker:
        await broker.ready(30)
        await wait_for_ready(broker, STATUSES.dlq, 2)


async def test_of_many_only_those_that_are_shown_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, decoded = f"sqlite:///{tmp_path / 'broker.db'}", list[bytes]()

    def decode(body: bytes) -> JobStatusV1:
        decoded.append(body)
        return JobStatusV1.decode(body)

    monkeypatch.setattr(dead_statuses, "JobStatusV1", SimpleNamespace(decode=decode))
    names = [f"solstice/{number}" for number in range(1000)]
    await publish_dead_letters(url, *(("not_found", {"context": name}) for name in names))
    async with open_dead_letter_queues(url, name="test") as queues:
        shown = await dead_statuses.dead_statuses(queues, 20)
    assert [each.context for each in shown] == names[:20]
    assert len(decoded) == 20


async def test_a_closed_pipe_ends_the_list_quietly(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    await publish_dead_letters(url, *(("not_found", {"context": str(number)}) for number in range(200)))
    for format_options in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", START, "statuses", "dead", "--limit", "200", *format_options],
            env=environment(url),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, "")


async def test_of_many_only_those_that_are_sent_once_more_are_read(
    rabbitmq_vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ delivers the whole queue for that, and returns it.

    So each read takes as long as the queue has messages.
    """
    url, times_delivered, read = rabbitmq_vhost.url, list[str](), list[str]()

    async def hold(reader: DeadLetterReader, *arguments: Any, **options: Any) -> None:
        times_delivered.append("")
        await original_hold(reader, *arguments, **options)

    def dead_letter_of(*arguments: Any, **options: Any) -> DeadLetter:
        read.append("")
        return dead_letter_messages.dead_letter_of(*arguments, **options)

    original_hold = DeadLetterReader.hold
    monkeypatch.setattr(DeadLetterReader, "hold", hold)
    monkeypatch.setattr(rabbitmq_dead_letters, "dead_letter_of", dead_letter_of)
    names = [f"solstice/{number}" for number in range(1000)]
    await publish_dead_letters(url, *(("not_found", {"context": name}) for name in names))
    async with connected(url) as broker, open_dead_letter_queues(url, name="test") as queues:
        await wait_for_ready(broker, STATUSES.dlq, 1000)
        replayed = await dead_statuses.replay(broker, queues, 20, reason=None, by="test")
        assert (replayed.sent, replayed.left, replayed.broken_off) == (20, 0, "")
        sent = [JobStatusV1.decode(each.body).context for each in await drain(broker, STATUSES.queue, 20)]
        await wait_for_ready(broker, STATUSES.dlq, 980)
    assert sent == names[:20]
    assert (len(times_delivered), len(read)) == (1, 100), "once, and of it one group"


async def test_dead_letters_are_sent_once_more_as_they_came(broker_url: str) -> None:
    url = broker_url
    await publish_dead_letters(url, ("not_found", {}), ("forbidden", {"context": "solstice/lint"}))
    one = statuses(url, "replay", "--reason", "forbidden")
    assert (one.returncode, one.stdout) == (0, "sent 1 again\n"), one.stderr
    async with open_broker(url, name="test") as broker:
        await broker.ready(30)
        await wait_for_ready(broker, STATUSES.dlq, 1)
        (sent,) = await drain(broker, STATUSES.queue, 1)
        assert sent.body == job_status("failed", context="solstice/lint").encode()
        headers = dict(sent.headers)
        assert "forbidden" in str(headers.pop("x-solstice-history"))
        assert headers.pop("x-solstice-replay")
        assert headers == {"traceparent": "kept", "x-solstice-attempt": 2}
        assert statuses(url, "replay").stdout == "sent 1 again\n"
        await wait_for_ready(broker, STATUSES.dlq, 0)
        await wait_for_ready(broker, STATUSES.queue, 1)
