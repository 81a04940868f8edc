"""Measures from the webhook to the commit's first status at the forge.

The forge is a fake one that answers after 100 ms.
"""

import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_common.messages import Source
from tests.bench import load
from tests.bench.latency import repository
from tests.bench.services import services
from tests.servers.forge_api import Delayed, forge_api
from tests.servers.rabbitmq import RabbitMQServer

PER_SECOND: Final = 5.0
SLOTS: Final = 32
ANSWER_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 120.0
WARM_UP: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStatus:
    """Seconds from a webhook's due moment to its commit's first status."""

    count: int
    p50: float
    p99: float
    worst: float
    calls: int
    """How many statuses were set."""

    @property
    def summary(self) -> str:
        """The figures, for people."""
        return (
            f"webhook to first status at {PER_SECOND:.0f}/s, {self.count} pushes, a forge that answers in "
            f"{1000 * ANSWER_SECONDS:.0f} ms: p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, worst {self.worst:.2f} s "
            f"(goal: p99 <= 5 s); {self.calls} calls"
        )


async def measure(server: RabbitMQServer, *, count: int) -> FirstStatus:
    """Send `count` pushes after a warm-up, each with its own commit, steadily."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        commits = repository(directory / "otter.git", count + WARM_UP)
        bodies = [
            load.push_of(commit, f"file://{directory}/otter.git", ref=f"refs/heads/topic-{number}")
            for number, commit in enumerate(commits)
        ]
        async with forge_api(Source.FORGEJO) as forge:
            forge.behave(lambda _request: Delayed(seconds=ANSWER_SECONDS))
            config = directory / "sources.toml"
            config.write_text(
                f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\n'
                f'secrets = ["plain:{load.SECRET}"]\ntoken = "plain:{forge.token}"\n'
            )
            async with services(
                vhost.url, directory / "state", slots=SLOTS, FORGE_CONFIG=str(config)
            ) as running:
                sent = await load.at_rate(
                    running.forge_port, [load.request_bytes(body) for body in bodies], per_second=PER_SECOND
                )
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while len({key[1] for key in forge.shown}) < len(commits):  # noqa: ASYNC110  what others set
                        await asyncio.sleep(0.1)
            first: dict[str, float] = {}
            for request, status in forge.calls:
                if status:
                    first.setdefault(request.path.rpartition("/")[2], request.at + ANSWER_SECONDS)
            calls = len(forge.calls)
    waits = sorted(first[commit] - at for commit, at in list(zip(commits, sent, strict=True))[WARM_UP:])
    return FirstStatus(
        count=count,
        p50=statistics.median(waits),
        p99=waits[round(0.99 * (len(waits) - 1))],
        worst=waits[-1],
        calls=calls,
    )
