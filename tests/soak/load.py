"""Sends webhooks to a deployment until enough jobs have ended.

It never sends far ahead of what is done.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2

from solstice_cli.demo.deliveries import RefChange, signed_delivery
from tests.servers.solstice_up import Repository, repository
from tests.soak.deployments import FORGE, Deployment

UNDER_WAY: Final = 2
"""The most runs that have not ended."""
STUCK_SECONDS: Final = 600.0
PAUSE_SECONDS: Final = 0.5
PAGE: Final = 200


class Stuck(Exception):
    """No run ended for a long time."""


def tiny_jobs(folder: Path, count: int) -> Repository:
    """A repository whose workflow has so many jobs of one empty step."""
    values = " ".join(f'"{number}"' for number in range(count))
    return repository(
        folder,
        {
            ".solstice/workflow.kdl": (
                'job "tiny" {\n    matrix {\n        n ' + values + '\n    }\n    step "true" run="true"\n}\n'
            )
        },
    )


class Load:
    """Runs of one repository, each pushed to a branch of its own."""

    def __init__(self, deployment: Deployment, project: Repository, client: httpx2.Client) -> None:
        self._deployment, self._project, self._client = deployment, project, client
        self._head = project.head
        self.ended: dict[str, str] = {}
        """The ended run of each request."""

    def run(self, runs: int, progress: Callable[[int], None]) -> None:
        """Push until so many runs have ended; Stuck when none ends for too long."""
        sent, last = set[str](), time.monotonic()
        while len(self.ended) < runs:
            while len(sent) < runs and len(sent) - len(self.ended) < UNDER_WAY:
                sent.add(self._push(len(sent)))
            new = self._newly_ended(sent)
            if new:
                last = time.monotonic()
                self.ended |= new
                progress(len(self.ended))
            elif time.monotonic() - last > STUCK_SECONDS:
                raise Stuck(f"{len(self.ended)} of {runs} runs have ended, and none in {STUCK_SECONDS:g} s")
            time.sleep(PAUSE_SECONDS)

    def jobs(self) -> Iterator[dict[str, Any]]:
        """All jobs of the runs that have ended."""
        for run_id in self.ended.values():
            yield from self._ask("jobs", run_id=run_id, limit=str(PAGE))["jobs"]

    def newest_run(self) -> dict[str, Any]:
        """The run that was pushed last."""
        (run,) = self._ask("runs", limit="1")["runs"]
        return dict(run)

    def _push(self, number: int) -> str:
        change = RefChange(
            repo_url=self._project.folder.as_uri(),
            repo_full_name="soak/tiny",
            ref=f"refs/heads/branch-{number}",
            commit_sha=self._head,
        )
        delivery = signed_delivery(
            FORGE,
            "push",
            change,
            secret=self._deployment.secret,
            delivery_id=str(uuid.uuid4()),
            now=time.time(),
        )
        url = f"{self._deployment.webhooks}/{FORGE.value}"
        answer = self._client.post(url, content=delivery.body, headers=dict(delivery.headers))
        (request_id,) = answer.raise_for_status().json()["request_ids"]
        return str(request_id)

    def _newly_ended(self, sent: set[str]) -> dict[str, str]:
        waiting = sent - self.ended.keys()
        return {
            run["request_id"]: run["run_id"]
            for run in self._ask("runs", limit=str(4 * UNDER_WAY))["runs"]
            if run["request_id"] in waiting and run["finished_at"] is not None
        }

    def _ask(self, path: str, **query: str) -> dict[str, Any]:
        answer = self._client.get(f"{self._deployment.api}/{path}", params=query)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found
