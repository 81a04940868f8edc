"""Measures time and memory of simulating a year of a million jobs.

The trace has ten thousand repositories; `solstice simulate` plays it.
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECONDS_GOAL: Final = 120.0
MEBIBYTES_GOAL: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulating:
    """One trace, played once unchanged and once with another slot."""

    jobs: int
    over: str
    slots: str
    seconds: float
    cpu_seconds: float
    """The same as `seconds`, where nothing else runs."""
    mebibytes: float
    """Its largest memory."""

    @property
    def summary(self) -> str:
        """The figures, for people."""
        return (
            f"simulate, {self.jobs:,} jobs in {self.over} on {self.slots}: {self.seconds:.0f} s "
            f"(goal <= {SECONDS_GOAL:.0f} s), {self.cpu_seconds:.0f} s of a processor, "
            f"{self.mebibytes:.0f} MiB at most (goal <= {MEBIBYTES_GOAL:.0f} MiB)"
        )


async def measure(*, jobs: int, over: str = "365d", slots: str = "linux=8") -> Simulating:
    """Generate a trace, then play it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "jobs.jsonl"
        await solstice("generate", "--out", str(trace), "--jobs", str(jobs), "--over", over)
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = await solstice("--trace", str(trace), "--slots", slots)
        seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if json.loads(summary)["jobs"] != jobs:
        raise RuntimeError("not every job of the trace was played")
    return Simulating(
        jobs=jobs,
        over=over,
        slots=slots,
        seconds=seconds,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        mebibytes=after.ru_maxrss / 1024,
    )


async def solstice(*words: str) -> bytes:
    """Run `solstice simulate`; return its JSON, or RuntimeError when it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "solstice_cli", "simulate", *words, "--json", stdout=asyncio.subprocess.PIPE
    )
    summary, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"solstice simulate {' '.join(words)} ended with {process.returncode}")
    return summary
