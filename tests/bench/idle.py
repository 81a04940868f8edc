"""Measures the processor time and memory of each idle service.

The figures are those of the kernel.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import processor_seconds
from tests.bench.services import services
from tests.servers.rabbitmq import RabbitMQServer

SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The share of one core in per cent; the resident set size in MiB."""

    cpu_percent: float
    mebibytes: float


async def measure(server: RabbitMQServer, *, seconds: float) -> Mapping[str, Idle]:
    """Measure both services, connected to RabbitMQ and otherwise idle."""
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        async with services(vhost.url, Path(name), slots=4) as running:
            await asyncio.sleep(SETTLE_SECONDS)
            before = {pid: processor_seconds(pid) for pid in running.pids.values()}
            await asyncio.sleep(seconds)
            return {
                service: Idle(
                    cpu_percent=100 * (processor_seconds(pid) - before[pid]) / seconds,
                    mebibytes=_memory(pid),
                )
                for service, pid in running.pids.items()
            }


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)
