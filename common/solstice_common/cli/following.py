"""Follows a run or a job on a terminal: prints its logs until the end."""

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.terminal import HarmlessText
from solstice_common.errors import ServiceRefused, ServiceUnavailable, first_of
from solstice_common.messages.states import FINAL, NEVER_STARTED, JobState

Write = Callable[[str], None]

FROM_THE_FIRST: Final = "1.0"
"""The position before everything in a job's logs: attempt 1, no chunk."""

SILENCE_SECONDS: Final = 2.0
"""How long a run may wait before its follower asks why."""

INDENT: Final = "  "
"""The indent of the lines that a job prints; marks have none."""
ESCAPE: Final = "\x1b"
RESET: Final = "\x1b[0m"
_EDGE: Final = re.compile(r"(?<![^\r\n])(?=[^\r\n])")
"""Where a line begins: after a line feed, or a carriage return that overwrites."""
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class RunWait:
    """The reason why a run waits while none of its jobs runs.

    `job` is empty for a run without jobs.
    """

    job: str
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.job or 'the run'} waits: {self.detail}"


def once_per_reason(say: Callable[[str], None]) -> Callable[[RunWait], None]:
    """Report a wait when its job or its reason changed.

    Figures in it change all the time.
    """
    printed: tuple[str, str] | None = None

    def waits(wait: RunWait) -> None:
        nonlocal printed
        if printed != (wait.job, wait.reason):
            printed = wait.job, wait.reason
            say(str(wait))

    return waits


async def follow_job(
    api: OrchestratorClient,
    job_id: str,
    write: Write,
    *,
    attempt: int | None = None,
    service: str | None = None,
    terminal: bool = False,
) -> Document:
    """Write the log of a job or its service as it comes.

    Return the data of its `end`.

    The data has `state`, `reason` and `exit_code`. Without `attempt` it writes the logs of all attempts, each
    but the first after a line such as `attempt 2`.

    With `terminal`, only text and colours are written, no other control sequences.
    """
    return await _follow(api, job_id, LogWriter(write, terminal=terminal), attempt, service)


async def _follow(
    api: OrchestratorClient,
    job_id: str,
    log: "LogWriter",
    attempt: int | None = None,
    service: str | None = None,
) -> Document:
    after = FROM_THE_FIRST if attempt is None else None
    async with aclosing(api.log_events(job_id, attempt=attempt, after=after, service=service)) as events:
        async for event in events:
            if event.name == "chunk":
                log.chunk(event.data)
            elif event.name == "attempt" and event.data["attempt"] > 1 and attempt is None:
                log.mark(f"attempt {event.data['attempt']}")
            elif event.name == "gap":
                log.gap(event.data)
            elif event.name == "end":
                log.finish()
                return event.data
    return {}


async def follow_run(
    api: OrchestratorClient,
    run_id: str,
    write: Write | None,
    *,
    changed: Callable[[Document], None] | None = None,
    waits: Callable[[RunWait], None] | None = None,
    label: Callable[[str], str] = "{} | ".format,
    terminal: bool = False,
) -> Document:
    """Wait for the end of a run; return it with its jobs.

    `write` gets the logs of its jobs as they come, each line after `label(job name)` when there are several
    jobs. `terminal` is as in `follow_job`. `changed` is called with the run and its jobs at every change,
    `waits` about every two seconds while no job runs.
    """
    try:
        async with asyncio.TaskGroup() as tasks, aclosing(api.run_events(run_id)) as events:
            following: set[str] = set()
            asking = tasks.create_task(_ask_why(api, run_id, waits)) if waits else None
            async for event in events:
                run = event.data
                if changed:
                    changed(run)
                jobs = run["jobs"]
                for job in jobs:
                    if write and job["job_id"] not in following and job["state"] not in NEVER_STARTED:
                        following.add(job["job_id"])
                        log = LogWriter(
                            write,
                            label(job["name"]) if len(jobs) > 1 else "",
                            terminal=terminal,
                            whole_lines=True,
                        )
                        tasks.create_task(_follow(api, job["job_id"], log), name=f"follow:{job['name']}")
            if asking:
                asking.cancel()
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    return await api.run(run_id)


async def _ask_why(api: OrchestratorClient, run_id: str, waits: Callable[[RunWait], None]) -> None:
    while True:
        await asyncio.sleep(SILENCE_SECONDS)
        # The command that follows the run reports errors of the orchestrator.
        with suppress(ServiceRefused, ServiceUnavailable):
            if wait := await _wait_of(api, await api.run(run_id)):
                waits(wait)


async def _wait_of(api: OrchestratorClient, run: Document) -> RunWait | None:
    """Return why the first startable job waits; None while a job runs."""
    open_jobs = [job for job in run["jobs"] if job["state"] not in FINAL]
    if any(job["state"] == JobState.RUNNING for job in open_jobs):
        return None
    waiting = [job for job in open_jobs if job["state"] != JobState.BLOCKED] or open_jobs
    if waiting:
        name, answer = waiting[0]["name"], await api.why_job(waiting[0]["job_id"])
    else:
        name, answer = "", await api.why_run(run["run_id"])
    why = answer["why"]
    return why and RunWait(name, why["reason"], why["detail"])


class LogWriter:
    """A writer of logs: our marks stand at the margin, a job's output is indented.

    So a job cannot imitate a mark. Each line follows `label`. With `whole_lines`, so that several logs can
    share one output, a line is written once it has ended. With `terminal`, only text and colours are written,
    no other control sequences.
    """

    def __init__(
        self, write: Write, label: str = "", *, terminal: bool = False, whole_lines: bool = False
    ) -> None:
        self._write, self._label, self._whole_lines = write, label, whole_lines
        self._harmless = HarmlessText() if terminal else None
        self._rest = ""
        """The part of a line that has not ended; only with `whole_lines`."""
        self._line_open = self._at_edge = self._coloured = False

    def chunk(self, chunk: Document) -> None:
        """Write a chunk of a log from the API; orchestrators before 1.0 sent no kinds."""
        if chunk.get("kind") == "mark":
            self.mark(chunk["text"])
        else:
            self.output(chunk["text"])

    def output(self, text: str) -> None:
        """Write a piece of the job's output, cut anywhere."""
        if self._harmless:
            text = self._harmless.feed(text)
            self._coloured = self._coloured or ESCAPE in text
        if not text:
            return
        margin = self._label + INDENT
        shown = _EDGE.sub(margin, text)
        if self._line_open and not self._at_edge:
            shown = shown.removeprefix(margin)
        self._line_open, self._at_edge = not text.endswith("\n"), text.endswith("\r")
        self._pass_on(shown)

    def mark(self, text: str) -> None:
        """Write a mark."""
        if self._harmless:
            self._harmless = HarmlessText()
        self._end_line()
        self._pass_on(f"{self._label}{_CONTROLS.sub(' ', text).rstrip()}\n")

    def gap(self, gap: Document) -> None:
        """Note missing chunks."""
        self.mark(f"! Output is missing here: pieces {gap['first']} to {gap['last']} were never stored.")

    def finish(self) -> None:
        """Write the rest: the log has ended."""
        self._end_line()

    def _end_line(self) -> None:
        # The job's colours end as well: they could hide what follows.
        line_end = RESET * self._coloured + "\n" * self._line_open
        self._line_open = self._at_edge = self._coloured = False
        if line_end:
            self._pass_on(line_end)

    def _pass_on(self, text: str) -> None:
        if not self._whole_lines:
            self._write(text)
            return
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(f"{line}{RESET * (self._harmless is not None and ESCAPE in line)}\n")
