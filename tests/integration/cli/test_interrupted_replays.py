"""A replay that a signal ends says what it sent, and what is left."""

import json
import signal

from solstice_common.broker import open_broker
from tests.brokers import broker_url, pytest_generate_tests
from tests.dead_letter_replays import JOBS, fill, refused, start_replay
from tests.polling import wait_until_true
from tests.traffic import wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]
DEAD = 200
RATE = 20


async def test_its_report_is_printed_and_nothing_is_lost(broker_url: str) -> None:
    async with open_broker(broker_url, name="test") as broker:
        await fill(broker, *(refused(n) for n in range(DEAD)))
        replaying = await start_replay(broker_url, "--queue", "requests", "--json", "--rate", str(RATE))

        async def some_are_sent() -> bool:
            depth = await broker.depth(JOBS.queue)
            # Of the last group, the answer may not have come.
            return depth is not None and depth.ready >= 2 * RATE

        await wait_until_true("some are sent", some_are_sent)
        assert replaying.returncode is None, "the signal was to come on its way"
        replaying.send_signal(signal.SIGTERM)
        output, errors = await replaying.communicate()
        (report,) = json.loads(output)["replays"]
        assert replaying.returncode == 130, errors
        assert report["broken_off"] == "interrupted"
        assert len(report["sent"]) + report["left"] == DEAD
        assert RATE <= len(report["sent"]) < DEAD
        assert errors == b""
        again = await start_replay(broker_url, "--queue", "requests")
        output, errors = await again.communicate()
        assert again.returncode == 0, (output, errors)
        await wait_for_ready(broker, JOBS.dlq, 0)
        depth = await broker.depth(JOBS.queue)
        assert depth is not None
        assert depth.ready >= DEAD
