"""AMQP_PRIORITIES is switched on every broker under traffic, while the services are killed.

Nothing is lost and nothing is built twice, in either order of the services.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from solstice_common.broker import open_broker
from solstice_common.broker.protocol import QueueDepth
from solstice_common.messages import Priority, Source
from solstice_common.settings import BrokerSettings
from solstice_common.topology import split_jobs_route
from tests.brokers import EMBEDDED, pytest_generate_tests
from tests.chaos.faults.brokers import EmbeddedUnderFaults, broker_under_faults
from tests.chaos.faults.line import JOBS_OF_A_PUSH, WAIT_SECONDS, WORKFLOW, Line, open_line
from tests.e2e.webhook_calls import WebhookCall, push
from tests.polling import wait_until_true

__all__ = ["pytest_generate_tests"]

RULES = "".join(
    f'[[sources.forgejo.rules]]\nname = "{each}"\nrepositories = ["{each}/anvil"]\npriority = "{each}"\n'
    for each in Priority
)
CLASS_ROUTES = split_jobs_route(BrokerSettings.model_construct()).classes.values()
PUSHES_OF_A_STEP = 4
# A minute each: every commit shows it on a file and on a server.
ON_EVERY_BROKER = "CHAOS_SCHEDULES" in os.environ


class Switched:
    """A line whose services are killed and started with one setting or the other."""

    def __init__(self, line: Line, calls: Sequence[WebhookCall]) -> None:
        self.line = line
        self._calls: Iterator[WebhookCall] = iter(calls)

    async def traffic(self) -> None:
        """Send the next pushes, one of each class; each is answered when this returns."""
        await self.line.sender.send([next(self._calls) for _ in range(PUSHES_OF_A_STEP)])

    async def forge(self, priorities: str) -> None:
        """Kill forge-integration while it answers, and start it with that setting."""
        self.line.settings["AMQP_PRIORITIES"] = priorities
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.traffic(), name="webhooks")
            assert self.line.receiving is not None
            await asyncio.to_thread(self.line.receiving.kill)
            await self.line.start_forge()
        await self.traffic()

    async def orchestrators(self, *priorities: str) -> None:
        """Kill one orchestrator after the other while webhooks come, and start each with its setting."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.traffic(), name="webhooks")
            for each in priorities:
                self.line.settings["AMQP_PRIORITIES"] = each
                await asyncio.to_thread(self.line.orchestrators.pop(0).kill)
                await self.line.start_orchestrator()
        await self.traffic()

    async def is_over(self) -> None:
        await wait_until_true("all that was promised is done and shown", self.line.is_over)

    async def class_depths(self) -> list[QueueDepth | None]:
        async with open_broker(self.line.broker.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            return [await broker.depth(each.queue) for each in CLASS_ROUTES]

    async def class_queues_exist(self) -> bool:
        return all(depth is not None for depth in await self.class_depths())

    async def class_queues_are_empty(self) -> bool:
        return all(depth is not None and not depth.ready for depth in await self.class_depths())

    async def delete_class_queues(self) -> None:
        # Those in a file cannot be deleted from outside.
        if not isinstance(self.line.broker, EmbeddedUnderFaults):
            for each in CLASS_ROUTES:
                await self.line.broker.delete_queue(each.queue)


@pytest.mark.timeout(600)
async def test_switching_on_and_off_under_traffic_and_kills_loses_nothing(
    broker_kind: str, tmp_path: Path
) -> None:
    if not ON_EVERY_BROKER and broker_kind not in {EMBEDDED, "default"}:
        pytest.skip("not asked for: CHAOS_SCHEDULES=1 runs it")
    async with open_line(broker_under_faults(broker_kind, tmp_path), tmp_path, rules=RULES) as line:
        steps = 12
        repository, commits = line.gated_jobs.repository(
            "anvil", {".solstice/workflow.kdl": WORKFLOW}, commits=steps * PUSHES_OF_A_STEP
        )
        classes = [*Priority] * steps
        switched = Switched(
            line,
            [
                push(Source.FORGEJO, repository.url, commit, now=time.time(), full_name=f"{each}/anvil")
                for each, commit in zip(classes, commits, strict=True)
            ],
        )
        await switched.traffic()
        assert await switched.class_depths() == [None, None, None]
        # On, publishers first: what they split waits for the first orchestrator that starts again.
        await switched.forge("split")
        await wait_until_true("the queues of classes are there", switched.class_queues_exist)
        await switched.orchestrators("split", "one")
        await switched.is_over()
        await wait_until_true("they are empty", switched.class_queues_are_empty)
        # Under both services, as by a mistaken operator.
        await switched.delete_class_queues()
        await switched.traffic()
        await switched.is_over()
        # Off, orchestrators first: they go on taking what publishers split.
        await switched.orchestrators("one")
        await switched.forge("one")
        await switched.is_over()
        await wait_until_true("what was left is taken", switched.class_queues_are_empty)
        await switched.delete_class_queues()
        await switched.orchestrators("one")
        await switched.is_over()
        report = await line.audit()
        runs = (await line.store.runs(limit=500)).runs
        by_class = [len((await line.store.runs(limit=500, priority=each)).runs) for each in Priority]
    print(f"\n{broker_kind}: {report}")  # noqa: T201  the audit is read
    assert report.clean, report
    assert len(runs) == report.promised == len(line.sender.answers)
    assert report.ran == report.promised * JOBS_OF_A_PUSH
    assert by_class == [report.promised // 4] * 4
