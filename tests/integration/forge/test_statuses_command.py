"""`forge-integration statuses`: dead letters are shown, and sent once more, on every broker."""

import json
import subprocess
import sys
from typing import Any

from solstice_common.broker import Message, open_broker
from solstice_common.topology import STATUSES, QueueType
from tests.brokers import broker_url, pytest_generate_tests
from tests.servers.service_process import base_environment
from tests.statuses import SHA, job_status
from tests.traffic import connected, drain, wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]

TOPOLOGY = STATUSES.topology(QueueType.QUORUM)


def statuses(broker_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from solstice_forge.cli import main; main()", "statuses", *arguments],
        env={**base_environment(), "AMQP_URL": broker_url, "COLUMNS": "250"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


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
