"""Watch a run or a job from a terminal: its logs as they are written, until it has ended."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from solstice_common.api_client import Document, OrchestratorClient
from solstice_common.errors import first_of
from solstice_common.terminal import HarmlessText

Write = Callable[[str], None]

FROM_THE_FIRST: Final = "1.0"
"""The place in a job's logs before everything: attempt 1, nothing of it."""

NEVER_RAN: Final = frozenset({"blocked", "waiting", "backoff", "approval", "skipped"})


async def follow_job(
    api: OrchestratorClient,
    job_id: str,
    write: Write,
    *,
    attempt: int | None = None,
    terminal: bool = False,
) -> Document:
    """Write a job's log as it comes; return the data of its `end` (`state`, `reason`, `exit_code`).

    Without `attempt` that is the log of every attempt, each but the first behind a line `attempt 2`.

    With `terminal`, only what may be shown on one: colours, and no other command to it.
    """
    harmless = HarmlessText() if terminal else None
    line_open = False
    async with aclosing(
        api.log_events(job_id, attempt=attempt, after=FROM_THE_FIRST if attempt is None else None)
    ) as events:
        async for event in events:
            if event.name == "chunk":
                text = str(event.data["text"])
                line_open = not text.endswith("\n")
                write(harmless.feed(text) if harmless else text)
            elif event.name == "attempt" and event.data["attempt"] > 1 and attempt is None:
                write("\n" * line_open + f"attempt {event.data['attempt']}\n")
                line_open = False
            elif event.name == "gap":
                write(missing(event.data))
            elif event.name == "end":
                return event.data
    return {}


def missing(gap: Document) -> str:
    """What is written in the place of chunks that are not there."""
    return f"\n! Output is missing here: pieces {gap['first']} to {gap['last']} were never stored.\n"


async def follow_run(
    api: OrchestratorClient,
    run_id: str,
    write: Write | None,
    *,
    changed: Callable[[Document], None] | None = None,
    label: Callable[[str], str] = "{} | ".format,
    terminal: bool = False,
) -> Document:
    """Wait for the end of a run; return it with its jobs.

    `write` gets the logs of its jobs as they come, each line behind `label(job name)` when there are several jobs.
    With `terminal`, only what may be shown on one. `changed` hears of the run with its jobs whenever something changed.
    """
    try:
        async with asyncio.TaskGroup() as tasks, aclosing(api.run_events(run_id)) as events:
            following: set[str] = set()
            async for event in events:
                run = event.data
                if changed:
                    changed(run)
                jobs = run["jobs"]
                for job in jobs:
                    if write and job["job_id"] not in following and job["state"] not in NEVER_RAN:
                        following.add(job["job_id"])
                        lines = LineWriter(
                            write, label(job["name"]) if len(jobs) > 1 else "", terminal=terminal
                        )
                        tasks.create_task(
                            _follow_lines(api, job["job_id"], lines), name=f"follow:{job['name']}"
                        )
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    return await api.run(run_id)


async def _follow_lines(api: OrchestratorClient, job_id: str, lines: "LineWriter") -> None:
    await follow_job(api, job_id, lines.write)
    lines.finish()


class LineWriter:
    """Passes whole lines on, each behind a label, so that several logs can share one output.

    For a terminal, with what only colours and does not command it.
    """

    def __init__(self, write: Write, label: str, *, terminal: bool = False) -> None:
        self._write = write
        self._label = label
        self._rest = ""
        self._harmless = HarmlessText() if terminal else None

    def write(self, text: str) -> None:
        """Take a piece of log; what has no end of line yet is kept."""
        if self._harmless:
            text = self._harmless.feed(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(f"{self._label}{line}\n")

    def finish(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest:
            self._write(f"{self._label}{self._rest}\n")
            self._rest = ""
