import asyncio

import pytest

from solstice_common.broker import depths
from solstice_common.broker.depths import depths_of
from solstice_common.broker.protocol import QueueDepth
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Queue, Topology

TOPOLOGY = Topology(exchanges=(), queues=tuple(Queue(name=name) for name in "abc"), bindings=())
FULL = QueueDepth(ready=3, consumers=1)


class ScriptedDepths:
    """Knows `a`, not `b`; what it does when asked for `c` is given."""

    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self._error = error
        self._hangs = hangs

    async def depth(self, queue: str) -> QueueDepth | None:
        if queue == "c" and self._hangs:
            await asyncio.Event().wait()
        if queue == "c" and self._error is not None:
            raise self._error
        return None if queue == "b" else FULL


async def known_depths(broker: ScriptedDepths) -> dict[str, QueueDepth]:
    return dict(await depths_of(broker, TOPOLOGY))  # type: ignore[arg-type]  # nothing else of it is asked


async def test_every_queue_that_exists_has_its_depth() -> None:
    assert await known_depths(ScriptedDepths()) == {"a": FULL, "c": FULL}


async def test_a_broker_that_goes_away_meanwhile_leaves_what_it_answered() -> None:
    assert await known_depths(ScriptedDepths(BrokerUnavailable("redis://h", "gone"))) == {"a": FULL}


async def test_a_broker_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "ASK_SECONDS", 0.05)
    async with asyncio.timeout(10):
        assert await known_depths(ScriptedDepths(hangs=True)) == {"a": FULL}
