"""The rhythm in which sources are compared, with comparisons and a sleep of the test's."""

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar, cast

from solstice_forge.inbox import InboxStore
from solstice_forge.metrics import Metrics
from solstice_forge.reconcile.rounds import Reconciler
from solstice_forge.remote.http import Remote

INTERVAL = 900.0


class ScriptedReconciler(Reconciler):
    """Counts the comparisons per source: one waits for its forge, one fails, one succeeds."""

    compared: ClassVar[Counter[str]] = Counter()

    async def compare(self, name: str, **_: Any) -> None:
        self.compared[name] += 1
        match name:
            case "slow":
                await asyncio.Event().wait()
            case "broken":
                raise LookupError("a mistake")


async def test_source_that_waits_or_fails_holds_up_no_other() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    remote = cast("Remote", None)
    reconciler = ScriptedReconciler(
        inbox=cast("InboxStore", None),
        sources={},
        remotes={"slow": remote, "broken": remote, "sound": remote},
        metrics=Metrics(),
        rng=random.Random(1),
        clock=lambda: 0.0,
        sleep=sleep,
    )
    running = asyncio.create_task(reconciler.run(INTERVAL))
    async with asyncio.timeout(30):
        while min(reconciler.compared["broken"], reconciler.compared["sound"]) < 5:  # noqa: ASYNC110  counts send no notification
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert reconciler.compared["slow"] == 1
    first, *rest = pauses
    assert 0.05 * INTERVAL <= first <= 0.15 * INTERVAL
    assert all(0.8 * INTERVAL <= each <= 1.2 * INTERVAL for each in rest)
