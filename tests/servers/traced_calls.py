"""Shows when a server of the tests writes and syncs which files, with strace.

A trace takes some hundredths of a second, and needs neither another disk nor another start of the server.
"""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.servers.apt import apt_can_install, apt_install

WRITES: Final = frozenset({"write", "writev", "pwrite64", "pwritev"})
SYNCS: Final = frozenset({"fsync", "fdatasync"})
LONGEST: Final = 1 << 16
"""Bytes shown of each piece that is written."""
BEGUN: Final = re.compile(r"(?P<thread>\d+) +(?P<at>[\d.]+) (?P<name>\w+)\(\d+<(?P<path>/[^>]*)>(?P<text>.*)")
RESUMED: Final = re.compile(r"(?P<thread>\d+) +(?P<at>[\d.]+) <\.\.\. \w+ resumed>.* = (?P<answer>-?\d+)")
ENDED: Final = re.compile(r" = (?P<answer>-?\d+).* <(?P<seconds>[\d.]+)>$")
NOTHING_FOUND: Final = """\
These tests need strace. Install the package strace, or run the tests as root on Debian or Ubuntu, and they install it
themselves."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the operating system that wrote or synced a file."""

    name: str
    path: str
    text: str
    """What was written, as strace shows it."""
    begun: float
    """As `time.time()` was then."""
    ended: float


@contextmanager
def traced_calls(pid: int, folder: Path) -> Iterator[Path]:
    """Trace all threads of a running process, during the block, into a file.

    A thread goes on only when the end of its call is noted: what it does next comes later by every clock.
    On a machine that allows no tracing, the test is skipped.
    """
    _bring_strace()
    trace = folder / "trace"
    calls = f"trace={','.join(sorted(WRITES | SYNCS))}"
    options = [
        "-f",
        "-ttt",
        "-T",
        "-y",
        "-s",
        str(LONGEST),
        "-e",
        calls,
        "-e",
        "signal=none",
        "-o",
        str(trace),
    ]
    with subprocess.Popen(
        ["strace", *options, "-p", str(pid)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as strace:
        assert strace.stderr is not None
        output: list[str] = []
        try:
            for line in strace.stderr:
                output.append(line)
                if " attached" in line:
                    break
            else:
                # A sandbox may forbid ptrace(2), and then no program can be followed.
                pytest.skip(f"not asked for: this machine allows no tracing: {' '.join(output)}")
            yield trace
        finally:
            strace.send_signal(signal.SIGINT)
            strace.communicate()


def read_calls(lines: Iterable[str]) -> list[Call]:
    """The calls on files that succeeded, by their ends. Pure."""
    calls: list[Call] = []
    unfinished: dict[str, Call] = {}
    for line in lines:
        if begun := BEGUN.match(line):
            at = float(begun["at"])
            call = Call(begun["name"], begun["path"], begun["text"], at, at)
            ended = ENDED.search(line)
            if ended is None:
                unfinished[begun["thread"]] = call
            elif not ended["answer"].startswith("-"):
                calls.append(replace(call, ended=at + float(ended["seconds"])))
        elif resumed := RESUMED.match(line):
            was = unfinished.pop(resumed["thread"], None)
            if was is not None and not resumed["answer"].startswith("-"):
                calls.append(replace(was, ended=float(resumed["at"])))
    return calls


def is_synced(calls: Iterable[Call], marker: str, *, before: float) -> bool:
    """Whether a file with `marker` in it was synced since, and before that time. Pure."""
    of_files = list(calls)
    return any(
        sync.name in SYNCS and sync.path == write.path and write.ended <= sync.begun and sync.ended <= before
        for write in of_files
        if write.name in WRITES and marker in write.text
        for sync in of_files
    )


def _bring_strace() -> None:
    if shutil.which("strace") is None and apt_can_install():
        apt_install("strace")
    if shutil.which("strace") is None:
        raise RuntimeError(NOTHING_FOUND)
