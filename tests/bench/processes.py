"""Starts the processes of a measurement, reads their output, and ends them.

Each is ended by its own pid.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 300


class Role:
    """A process of `tests.bench.roles`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def processor_seconds(self) -> float:
        """Its processor time so far, over all processors."""
        return processor_seconds(self.pid)

    async def rate(self, count: int) -> float:
        """Things per second between the two moments of its last line."""
        facts = await self.answer()
        return count / float(facts["done_at"] - facts["began_at"])

    async def answer(self) -> dict[str, Any]:
        """The next line of its output; RuntimeError when it ended instead."""
        if self._process.stdout is None:
            raise RuntimeError("opened without a pipe")
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT_SECONDS)
        if not line:
            raise RuntimeError("a process of the bench ended without a word")
        facts: dict[str, Any] = json.loads(line)
        return facts

    async def go(self) -> None:
        """Start its work."""
        if self._process.stdin is None:
            raise RuntimeError("opened without a pipe")
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()


@asynccontextmanager
async def role(name: str, /, **arguments: Any) -> AsyncIterator[Role]:
    """A running role: terminated on leaving, killed when it does not end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.roles",
        name,
        json.dumps(arguments),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 26,
    )
    try:
        yield Role(process)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


def processor_seconds(pid: int) -> float:
    """The processor time of a running process so far, by the kernel's count."""
    return processor_times(pid)[0]


def processor_times(pid: int) -> tuple[float, float]:
    """The processor seconds of a running process, and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, (int(fields[13]) + int(fields[14])) / ticks
