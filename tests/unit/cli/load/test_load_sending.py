"""How a load publishes its requests."""

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

from solstice_cli.load.load_plan import JobKind, LoadRequest
from solstice_cli.load.load_report import Sent
from solstice_cli.load.load_sending import BATCH, UNCONFIRMED, QueuePublisher, Target, send_all
from solstice_common.broker.protocol import CONFIRMED, Published
from solstice_forge.commands.enqueue import EnqueueSettings
from tests.builders import SHA

REQUESTS = [
    LoadRequest(number=number, kind=JobKind.NOOP, repository=1, priority=None, due_seconds=0.0)
    for number in range(10 * BATCH)
]


async def test_a_burst_leaves_only_so_many_messages_unconfirmed() -> None:
    """The time limit of a confirm is that of a message on its way."""
    unconfirmed: list[int] = []
    at_once = 0

    async def publish(messages: Sequence[Any]) -> Sequence[Published]:
        nonlocal at_once
        at_once += len(messages)
        unconfirmed.append(at_once)
        await asyncio.sleep(0.01)
        at_once -= len(messages)
        return [CONFIRMED for _ in messages]

    target = Target(
        load_id="1", repo_url="file:///load.git", repositories=["load/1"], commits={JobKind.NOOP: SHA}
    )
    publisher = QueuePublisher(Mock(publish=publish), EnqueueSettings.model_construct(), target)
    answers: list[Sent] = []
    await send_all(publisher, REQUESTS, answers.extend)
    assert [each.request for each in answers] == REQUESTS
    assert not [each for each in answers if each.refusal]
    assert BATCH < max(unconfirmed) <= UNCONFIRMED
