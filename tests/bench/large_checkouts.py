"""Measures checkouts of a large repository beside `git clone --depth 1`.

Each round commits a small change, and checks it out by turns: with an object cache that has the commit before, once more
from that cache, without a cache, and by git's own clone. All fetch from the same server.
"""

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository
from tests.servers.git_servers import git_backend, http_server

FILE_BYTES: Final = 16 * 1024
CHANGED_FILES: Final = 10
CACHE_BYTES: Final = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """The time of each checkout, and what came from the server for it."""

    seconds: Sequence[float]
    received_bytes: Sequence[int]

    @property
    def summary(self) -> str:
        """The medians, for people."""
        received = statistics.median(self.received_bytes) / 1024**2
        return f"{statistics.median(self.seconds):.2f} s, {received:.2f} MiB received"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeCheckouts:
    """Checkouts of a repository with so many files."""

    files: int
    mebibytes: float
    turns: dict[str, RoundCosts]

    @property
    def summary(self) -> str:
        """The figures, for people."""
        lines = [f"  {name}: {turns.summary}" for name, turns in self.turns.items()]
        head = (
            f"checkout of {self.files:,} files, {self.mebibytes:.0f} MiB; each commit changes {CHANGED_FILES}"
        )
        return "\n".join([head, *lines])


class _Server:
    """Counts the bytes of its answers."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def handler(self, backend: Any) -> Any:
        counting = self

        class Counted(backend):  # type: ignore[misc]  # the class is made by a function
            def setup(self) -> None:
                super().setup()
                write = self.wfile.write

                def counted(content: bytes) -> int:
                    counting.sent_bytes += len(content)
                    return int(write(content))

                self.wfile.write = counted

        return Counted


async def measure(*, files: int, rounds: int) -> LargeCheckouts:
    """Check out `rounds` commits in each way. The first commit is not counted."""
    server, turns = _Server(), dict[str, list[tuple[float, int]]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = _project(folder, files)
        with http_server(server.handler(git_backend(folder / "root"))) as port:
            bench = _Bench(folder, f"http://127.0.0.1:{port}/large/.git", server)
            cache = ObjectCache(folder / "work" / "git" / "objects", CACHE_BYTES)
            await bench.ours(cache, project.git("rev-parse", "HEAD"))
            for number in range(rounds):
                sha = _change(project, number)
                ways: dict[str, Callable[[], Awaitable[tuple[float, int]]]] = {
                    "a new commit, the one before is known": partial(bench.ours, cache, sha),
                    "the same commit again": partial(bench.ours, cache, sha),
                    "a new commit, nothing is known": partial(bench.ours, None, sha),
                    "git clone --depth 1": bench.clone,
                }
                for way, turn in ways.items():
                    turns.setdefault(way, []).append(await turn())
    return LargeCheckouts(
        files=files,
        mebibytes=files * FILE_BYTES / 1024**2,
        turns={
            way: RoundCosts(
                seconds=[each[0] for each in each_turn], received_bytes=[each[1] for each in each_turn]
            )
            for way, each_turn in turns.items()
        },
    )


def _project(folder: Path, files: int) -> Repository:
    project = Repository(folder / "root" / "large")
    # No compression makes random contents small.
    rng = random.Random(17)
    project.commit({f"{number % 100}/{number}": rng.randbytes(FILE_BYTES) for number in range(files)})
    return project


def _change(project: Repository, number: int) -> str:
    rng = random.Random(number)
    return project.commit({f"{each}/{each}": rng.randbytes(FILE_BYTES) for each in range(CHANGED_FILES)})


class _Bench:
    def __init__(self, folder: Path, url: str, server: _Server) -> None:
        self._folder, self._url, self._server = folder, url, server

    async def ours(self, cache: ObjectCache | None, sha: str) -> tuple[float, int]:
        place, before = self._folder / "place", self._server.sent_bytes
        policy = GitPolicy(protocols=("http",), environment={"PATH": os.environ["PATH"]})
        request = job_request(repo_url=self._url, commit_sha=sha, ref="refs/heads/main", trusted=True)
        begun = time.monotonic()
        await check_out(request, place, policy=policy, scratch=self._folder / "work" / "git", objects=cache)
        return self._ended(place, begun, before)

    async def clone(self) -> tuple[float, int]:
        place, before = self._folder / "place", self._server.sent_bytes
        command = ["git", "clone", "--quiet", "--depth", "1", self._url, str(place)]
        begun = time.monotonic()
        await asyncio.to_thread(subprocess.run, command, env=GIT_ENVIRONMENT, check=True)
        return self._ended(place, begun, before)

    def _ended(self, place: Path, begun: float, before: int) -> tuple[float, int]:
        seconds = time.monotonic() - begun
        shutil.rmtree(place)
        return seconds, self._server.sent_bytes - before
