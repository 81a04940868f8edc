"""Reads from the orchestrator's API what became of a load."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from solstice_cli.load.load_report import Document, Seen, Sent
from solstice_cli.load.load_sending import Target
from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.errors import ServiceUnavailable
from solstice_common.messages.states import FINAL

PAGE: Final = 200
POLL_SECONDS: Final = 0.5
READING_SHARE: Final = 0.1
"""The most of the time that reading may take: it must not be a load of its own."""


@dataclass(slots=True)
class LoadRuns:
    """The runs of a load, as far as they are known."""

    api: OrchestratorClient
    target: Target
    runs: dict[int, dict[str, Document]] = field(default_factory=dict)
    """By the number of the request, and the id of the run."""
    _numbers: dict[str, int] = field(default_factory=dict)

    def answered(self, sent: Sequence[Sent]) -> None:
        """Remember these requests: their runs are looked for."""
        for each in sent:
            number = each.request.number
            self._numbers[self.target.request_id(number)] = number
            self._numbers[self.target.key(number)] = number

    @property
    def ended(self) -> int:
        """How many requests have a run that has ended."""
        return sum(any(run["state"] in FINAL for run in by_id.values()) for by_id in self.runs.values())

    async def until_ended(self, sent: Callable[[], int | None], show: Callable[[int], None]) -> None:
        """Read until as many runs have ended as were accepted.

        `sent` returns their number, None as long as not all are sent. It waits for an orchestrator that is away.
        """
        while True:
            began = time.monotonic()
            with suppress(ServiceUnavailable):
                await self.read()
            show(self.ended)
            accepted = sent()
            if accepted is not None and self.ended >= accepted:
                return
            took = time.monotonic() - began
            await asyncio.sleep(max(POLL_SECONDS, took / READING_SHARE))

    async def read(self) -> None:
        """Read all runs of the load's repositories."""
        for repository in self.target.repositories:
            after: str | None = None
            while True:
                page = await self.api.runs(limit=PAGE, after=after, repository=repository)
                for run in page["runs"]:
                    self._take(run)
                after = page["next"]
                if after is None:
                    break

    async def seen(self) -> Mapping[int, Seen]:
        """Return what is known of each request that has a run."""
        jobs: dict[str, list[Document]] = {}
        for repository in self.target.repositories:
            after: str | None = None
            while True:
                page = await self.api.jobs(limit=PAGE, after=after, repository=repository)
                for job in page["jobs"]:
                    jobs.setdefault(job["run_id"], []).append(job)
                after = page["next"]
                if after is None:
                    break
        return {number: await self._seen(list(by_id.values()), jobs) for number, by_id in self.runs.items()}

    async def _seen(self, runs: Sequence[Document], jobs: Mapping[str, Sequence[Document]]) -> Seen:
        own = jobs.get(runs[0]["run_id"], ())
        again = [job for run in runs for job in jobs.get(run["run_id"], ()) if job["attempt"] > 1]
        return Seen(
            runs=runs,
            jobs=own,
            attempts={job["job_id"]: await self.api.attempts(job["job_id"]) for job in again},
        )

    def _take(self, run: Document) -> None:
        number = self._numbers.get(run["request_id"]) or self._numbers.get(run.get("delivery_id") or "")
        if number is not None and run.get("rerun_of") is None:
            self.runs.setdefault(number, {})[run["run_id"]] = run
