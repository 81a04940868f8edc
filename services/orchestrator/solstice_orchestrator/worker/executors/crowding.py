"""End the job with the most processes when no more can be started.

The limit may be one of the user (`ulimit -u`), of a container, of systemd (`TasksMax`) or of the machine. Near it, no job
can start and no commit can be checked out, until the job that uses it up has ended.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes.completion import run_beside
from solstice_orchestrator.processes.supervisor import process_ids

CHECK_SECONDS: Final = 1.0
SPARE: Final = 8
"""The least number of processes that there must be room for. A checkout needs a few."""
LEAST_GUILTY: Final = 100
"""A job with fewer processes and threads is not ended: others have used up the limit."""


def crowding(counts: Mapping[int, int]) -> int | None:
    """Return the job with the most processes and threads; None when it has few."""
    most = max(counts, key=lambda job: counts[job], default=None)
    return most if most is not None and counts[most] >= LEAST_GUILTY else None


class CrowdingWatch:
    """Watches the number of processes while jobs run; one per executor."""

    def __init__(self) -> None:
        self._jobs: dict[int, asyncio.Future[Outcome]] = {}
        self._checked_at = 0.0
        self._shortages = 0
        """In how many checks in a row there was no room."""

    @contextmanager
    def watching(self, supervisor: int) -> Iterator["asyncio.Future[Outcome]"]:
        """Watch the processes below a supervisor; the future gets their job's outcome.

        It gets that when the job must end.
        """
        job_to_end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._jobs[supervisor] = job_to_end
        try:
            with run_beside(self._watch, after_seconds=CHECK_SECONDS, name="job processes"):
                yield job_to_end
        finally:
            del self._jobs[supervisor]
            job_to_end.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # One of the running jobs checks for all, and not while another is being ended: that may be enough.
            if loop.time() - self._checked_at >= CHECK_SECONDS / 2 and not any(
                future.done() for future in self._jobs.values()
            ):
                self._checked_at = loop.time()
                self._shortages = 0 if is_room_for(SPARE) else self._shortages + 1
                # A shortage of a moment passes by itself.
                if self._shortages > 1:
                    self._blame()
            await asyncio.sleep(CHECK_SECONDS)

    def _blame(self) -> None:
        # Not in a thread, which could not be started.
        counts = processes_below(self._jobs)
        guilty = crowding(counts)
        if guilty is not None:
            self._jobs[guilty].set_result(
                Outcome(
                    state=JobState.FAILED,
                    reason=Reason.STEP_FAILED,
                    detail="hardly any more processes can be started here, and the job has the most: "
                    f"{counts[guilty]} processes and threads",
                )
            )


def is_room_for(count: int) -> bool:
    """Whether so many more processes could be started now; the kernel counts threads as processes.

    This starts that many threads, which wait for each other and end at once.
    """
    gate = threading.Lock()
    with gate:
        try:
            for _ in range(count):
                threading.Thread(target=_pass, args=(gate,), daemon=True).start()
        except RuntimeError:
            return False
    return True


def _pass(gate: "threading.Lock") -> None:
    with gate:
        pass


def processes_below(ancestors: Mapping[int, object]) -> Mapping[int, int]:
    """Return how many processes, zombies included, and threads are below each of these processes."""
    children: dict[int, list[int]] = defaultdict(list)
    threads: dict[int, int] = {}
    for pid in process_ids():
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain parentheses and spaces: proc(5).
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            children[int(fields[1])].append(pid)
            threads[pid] = max(1, int(fields[17]))
    counts = {}
    for ancestor in ancestors:
        below, todo = 0, list(children[ancestor])
        while todo:
            pid = todo.pop()
            below += threads[pid]
            todo += children[pid]
        counts[ancestor] = below
    return counts
