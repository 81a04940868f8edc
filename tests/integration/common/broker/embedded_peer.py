"""Another process on an embedded broker or a Redis: `python embedded_peer.py URL ROLE [COUNT]`.

It writes one line per fact to standard output and runs until standard input ends, or until it is killed.
"""

import asyncio
import os
import signal
import sys
from functools import partial

from solstice_common.broker import Message, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.telemetry.logs import configure_logs
from solstice_common.topology import STATUSES, QueueType


def report(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  how it talks to the test


async def hold(url: str, count: int) -> None:
    """Take `count` messages and never settle them."""
    async with (
        open_broker(url, name="holder") as broker,
        broker.consume(STATUSES.queue, prefetch=count) as one,
    ):
        unsettled = 0
        while unsettled < count:
            unsettled += len(await one.batch())
        report("held", unsettled)
        await asyncio.Event().wait()


async def settle_late(url: str, _: int) -> None:
    """Take one message, and ack it when SIGUSR1 comes."""
    settle_requested = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, settle_requested.set)
    async with open_broker(url, name="late") as broker, broker.consume(STATUSES.queue, prefetch=1) as one:
        unsettled = await one.batch()
        report("held", len(unsettled))
        await settle_requested.wait()
        await one.settle([(delivery, Ack()) for delivery in unsettled])
        report("settled")
        await asyncio.Event().wait()


async def work(url: str, _: int) -> None:
    """Take messages and ack them; print each number."""
    name = f"worker-{os.getpid()}"
    async with open_broker(url, name=name) as broker, broker.consume(STATUSES.queue, prefetch=8) as one:
        report("ready")
        while True:
            batch = await one.batch()
            for delivery in batch:
                report("got", int(delivery.body), int(delivery.redelivered))
            await one.settle([(delivery, Ack()) for delivery in batch])


async def publish(url: str, count: int) -> None:
    """Publish `count` numbers, one call each, and print each outcome."""
    async with open_broker(url, name="publisher") as broker:
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        for number in range(count):
            message = Message(
                exchange=STATUSES.exchange,
                routing_key=STATUSES.routing_key,
                body=str(number).encode(),
                type="t",
            )
            (outcome,) = await broker.publish([message])
            report(outcome.status, number)
        report("done")


async def declare(url: str, _: int) -> None:
    async with open_broker(url, name="declarer") as broker:
        await broker.declare(STATUSES.topology(QueueType.QUORUM))
        report("declared")


async def main() -> None:
    url, role, count = sys.argv[1], sys.argv[2], int((*sys.argv, "0")[3])
    loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stop_requested.set)
    does = {"hold": hold, "late": settle_late, "work": work, "publish": publish, "declare": declare}[role]
    doing = asyncio.create_task(partial(does, url, count)(), name=role)
    stopping = asyncio.create_task(stop_requested.wait(), name="stop")
    await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
    doing.cancel()
    stopping.cancel()
    await asyncio.wait({doing, stopping})


configure_logs()
asyncio.run(main())
