"""Depths of queues, also without permission and without a broker."""

import asyncio
import contextlib

import pytest

from solstice_common.broker import depths
from solstice_common.broker.depths import depth_if_there, depths_of
from solstice_common.broker.protocol import BrokerHealth, QueueDepth
from solstice_common.errors import BrokerUnavailable

FULL = QueueDepth(ready=3, consumers=1)


class ScriptedDepths:
    """Knows `a`, not `b`; its behaviour for `c` is given."""

    def __init__(
        self, error: Exception | None = None, *, hangs: bool = False, connected: bool = True
    ) -> None:
        self.health = BrokerHealth(connected=connected)
        self._error = error
        self._hangs = hangs

    async def depth(self, queue: str) -> QueueDepth | None:
        if queue == "c" and self._hangs:
            await asyncio.Event().wait()
        if queue == "c" and self._error is not None:
            raise self._error
        return None if queue == "b" else FULL


async def known_depths(broker: ScriptedDepths) -> dict[str, QueueDepth]:
    return dict(await depths_of(broker, "abc"))  # type: ignore[arg-type]  # nothing else of it is asked


@pytest.mark.parametrize(("connected", "is_raised"), [(True, False), (False, True)])
async def test_queue_that_a_user_may_not_ask_for_is_none_and_a_broker_that_is_away_is_told(
    *, connected: bool, is_raised: bool
) -> None:
    refusing = ScriptedDepths(BrokerUnavailable("amqp://h", "ACCESS_REFUSED"), connected=connected)
    with pytest.raises(BrokerUnavailable) if is_raised else contextlib.nullcontext():
        assert await depth_if_there(refusing, "c") is None  # type: ignore[arg-type]  # as below
    assert await depth_if_there(refusing, "a") == FULL  # type: ignore[arg-type]  # as below


async def test_every_queue_that_exists_has_its_depth() -> None:
    assert await known_depths(ScriptedDepths()) == {"a": FULL, "c": FULL}


async def test_a_broker_that_goes_away_meanwhile_leaves_what_it_answered() -> None:
    assert await known_depths(ScriptedDepths(BrokerUnavailable("redis://h", "gone"))) == {"a": FULL}


async def test_a_broker_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "ASK_SECONDS", 0.05)
    async with asyncio.timeout(10):
        assert await known_depths(ScriptedDepths(hangs=True)) == {"a": FULL}
