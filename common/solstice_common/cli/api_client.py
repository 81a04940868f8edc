"""A client of the orchestrator's HTTP API, for `solstice` and `enqueue --wait`.

Answers are the unchanged JSON objects of the API, so that commands show the fields of a newer orchestrator,
too. Raises ServiceUnavailable when there is no answer, ServiceRefused when the answer is an error.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import quote

import httpx2
import orjson

from solstice_common.addresses.http_client import http_client
from solstice_common.addresses.system_errors import cause_in_words
from solstice_common.errors import ServiceRefused, ServiceUnavailable
from solstice_common.messages.states import FINAL
from solstice_common.settings import ClientSettings, without_password

Document = dict[str, Any]


class Filters(TypedDict, total=False):
    """Which runs or jobs to list; None or a missing field does not filter."""

    repository: str | None
    branch: str | None
    state: str | None
    label: str | None
    priority: str | None


STREAM_SILENCE_SECONDS: Final = 60.0
"""Seconds of silence after which a stream counts as dead.

The API sends a comment line at least every 15 s.
"""

_ADVICE: Final = "start one with 'solstice up', or set SOLSTICE_URL"


@dataclass(frozen=True, slots=True)
class ApiEvent:
    """One server-sent event; `data` is its JSON."""

    name: str
    data: Document
    id: str


class OrchestratorClient:
    """A client of one orchestrator over HTTP; open with `OrchestratorClient.open(url)`."""

    def __init__(self, url: str, http: httpx2.AsyncClient, resume_seconds: float) -> None:
        self.url = without_password(url)
        """The URL as it may be printed."""
        self._http = http
        self._resume_seconds = resume_seconds

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, token: str = "", resume_seconds: float = 60.0
    ) -> AsyncIterator["OrchestratorClient"]:
        """Open a client of the orchestrator at `url`.

        An event stream that breaks is resumed for `resume_seconds`.
        """
        async with http_client(
            url,
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(30.0, connect=5.0),
        ) as http:
            yield cls(url, http, resume_seconds)

    @classmethod
    def of(cls, settings: ClientSettings) -> AbstractAsyncContextManager["OrchestratorClient"]:
        """Return a client of the orchestrator that the settings name."""
        return cls.open(settings.solstice_url, token=settings.solstice_token.get_secret_value())

    async def runs(
        self, *, limit: int = 50, after: str | None = None, **filters: Unpack[Filters]
    ) -> Document:
        """Return one page of runs, newest first: `{"runs": [...], "next": CURSOR | null}`."""
        return await self._get("/api/v1/runs", {"limit": limit, "after": after, **_parameters(filters)})

    async def run(self, run_id: str) -> Document:
        """Return the run with its `jobs`."""
        return await self._get(f"/api/v1/runs/{run_id}")

    async def run_of_request(self, request_id: str) -> Document | None:
        """Return the run that a request became; None while no orchestrator has admitted it."""
        try:
            return await self._get(f"/api/v1/requests/{request_id}")
        except ServiceRefused as refused:
            if refused.status == httpx2.codes.NOT_FOUND:
                return None
            raise

    async def jobs(
        self,
        *,
        run_id: str | None = None,
        limit: int = 50,
        after: str | None = None,
        **filters: Unpack[Filters],
    ) -> Document:
        """Return one page of jobs: `{"jobs": [...], "next": CURSOR | null}`.

        Those of one run are in workflow order, others newest first.
        """
        return await self._get(
            "/api/v1/jobs", {"run_id": run_id, "limit": limit, "after": after, **_parameters(filters)}
        )

    async def job(self, job_id: str) -> Document:
        """Return the job with its `attempts`."""
        return await self._get(f"/api/v1/jobs/{job_id}")

    async def attempts(self, job_id: str) -> list[Document]:
        """Return every try at the job, oldest first."""
        answer = await self._get(f"/api/v1/jobs/{job_id}/attempts")
        attempts: list[Document] = answer["attempts"]
        return attempts

    async def why_job(self, job_id: str) -> Document:
        """Return why the job waits: `{"job_id", "run_id", "name", "state", "why": {...} | null}`."""
        return await self._get(f"/api/v1/jobs/{job_id}/why")

    async def why_run(self, run_id: str) -> Document:
        """Return why the run has no jobs yet: `{"run_id", "state", "why": {...} | null}`."""
        return await self._get(f"/api/v1/runs/{run_id}/why")

    async def log(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        after: int = 0,
        limit: int | None = None,
        service: str | None = None,
    ) -> Document:
        """Return one page of the log of an attempt or of its service.

        Without a number, of the newest attempt.

        `chunks` with a sequence above `after`, and `missing`.
        """
        return await self._get(
            f"/api/v1/jobs/{job_id}/log",
            {"attempt": attempt, "after": after, "limit": limit, "service": service},
        )

    async def ask(self, path: str, **query: str | int | None) -> Document:
        """Return the answer to a question below `/api/v1`."""
        return await self._get(f"/api/v1/{path}", query)

    async def artifacts(self, run_id: str) -> list[Document]:
        """Return the artifacts of the run, by jobs and names."""
        answer = await self._get(f"/api/v1/runs/{run_id}/artifacts")
        artifacts: list[Document] = answer["artifacts"]
        return artifacts

    async def artifact(
        self, job_id: str, name: str, digest: str, *, first: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an artifact's archive from `first` on.

        Raises ServiceUnavailable when they break off, and ServiceRefused when it is not that archive any more.
        """
        # Without the header a proxy could answer with other bytes than those asked for.
        headers = {"Range": f"bytes={first}-", "If-Range": f'"{digest}"', "Accept-Encoding": "identity"}
        path = f"/api/v1/jobs/{job_id}/artifacts/{quote(name, safe='')}"
        try:
            async with self._http.stream("GET", path, headers=headers) as response:
                if not response.is_success:
                    await response.aread()
                    _document(response, self.url)
                if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                    raise ServiceRefused(response.status_code, "changed", f"the artifact {name} was replaced")
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx2.HTTPError as error:
            raise self._unavailable(error) from error

    async def caches(self, **filters: str) -> list[Document]:
        """Return the caches that fit, the last used first."""
        return list((await self._get("/api/v1/caches", {**filters}))["caches"])

    async def drop_cache(self, which: str) -> Document:
        return await self._post(f"/api/v1/caches/{quote(which, safe='')}/drop")

    def log_events(
        self, job_id: str, *, attempt: int | None = None, after: str | None = None, service: str | None = None
    ) -> AsyncGenerator[ApiEvent, None]:
        """Return the log of a job or its service, as it grows.

        Events are `attempt`, `chunk`, `gap`, and one `end`, the last. It has the newest attempt and those
        that follow it, unless `after` names a position (`1.0`: all attempts).
        """
        parameters = {} if attempt is None else {"attempt": str(attempt)}
        if after is not None:
            parameters["after"] = after
        if service is not None:
            parameters["service"] = service
        return self._events(f"/api/v1/jobs/{job_id}/log/events", parameters)

    def run_events(self, run_id: str) -> AsyncGenerator[ApiEvent, None]:
        """Return the run at each change until its end, beginning with its current state."""
        return self._events(f"/api/v1/runs/{run_id}/events", {})

    async def cancel_job(self, job_id: str) -> Document:
        """Cancel a job; return its state now."""
        return await self._post(f"/api/v1/jobs/{job_id}/cancel")

    async def cancel_run(self, run_id: str) -> Document:
        """Cancel every job of a run; return its state now."""
        return await self._post(f"/api/v1/runs/{run_id}/cancel")

    async def approve_run(self, run_id: str) -> Document:
        """Let a run's jobs that wait for approval start; return its state now."""
        return await self._post(f"/api/v1/runs/{run_id}/approve")

    async def rerun(self, run_id: str, *, failed: bool = False) -> Document:
        """Run a commit again, with `failed` only what did not succeed; return the new run."""
        return await self._ask(
            "POST", f"/api/v1/runs/{run_id}/rerun", {"jobs": "failed" if failed else "all"}
        )

    async def rerun_job(self, job_id: str) -> Document:
        """Return the new run of one job, and of what needs it."""
        return await self._ask("POST", f"/api/v1/jobs/{job_id}/rerun", {})

    async def prioritise(self, job_id: str, priority: str) -> Document:
        """Change the priority class of a job; return its state now."""
        return await self._ask("POST", f"/api/v1/jobs/{job_id}/priority", {"priority": priority})

    async def scale(self, *, label: str | None = None, target_seconds: int | None = None) -> Document:
        """Return how much work there is, in total and by `labels`.

        With `label`, only of that label.
        """
        return await self._get("/api/v1/scale", {"label": label, "target_seconds": target_seconds})

    async def watermarks(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        repository: str | None = None,
        branch: str | None = None,
        behind: bool = False,
    ) -> Document:
        """Return one page of watermarks, by repository and ref: `{"watermarks": [...], "next": CURSOR | null}`."""
        only = "1" if behind else None
        return await self.ask(
            "watermarks", limit=limit, after=after, repository=repository, branch=branch, behind=only
        )

    async def dead_letters(self, *, limit: int = 50) -> list[Document]:
        """Dead letters of all queues, oldest first; changes nothing."""
        answer = await self._get("/api/v1/dead-letters", {"limit": limit})
        dead_letters: list[Document] = answer["dead_letters"]
        return dead_letters

    async def workers(self) -> list[Document]:
        """Return every worker that is or recently was connected, by name."""
        answer = await self._get("/api/v1/workers")
        workers: list[Document] = answer["workers"]
        return workers

    async def steer_worker(self, worker_id: str, order: str, *, seconds: int | None = None) -> Document:
        """Order a worker to `pause`, `resume`, `drain` or `quarantine`; return its state now.

        A quarantine lasts `seconds`.
        """
        fields = {} if seconds is None else {"seconds": seconds}
        return await self._ask("POST", f"/api/v1/workers/{quote(worker_id)}/{order}", {**fields})

    async def schedules(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        repository: str | None = None,
        branch: str | None = None,
    ) -> Document:
        """Return one page of schedules, in order of creation: `{"schedules": [...], "next": CURSOR | null}`."""
        return await self._get(
            "/api/v1/schedules", {"limit": limit, "after": after, "repository": repository, "branch": branch}
        )

    async def schedule(self, which: str) -> Document:
        """Return the schedule of that name or id, with its newest `ticks`."""
        return await self._get(f"/api/v1/schedules/{quote(which, safe='')}")

    async def next_ticks(self, which: str, *, count: int = 10) -> Document:
        """Return when its next ticks are due: `{"schedule_id", "timezone", "ticks": [{"at", "local"}]}`."""
        return await self._get(f"/api/v1/schedules/{quote(which, safe='')}/next", {"count": count})

    async def add_schedule(self, schedule_input: Document) -> Document:
        """Return a new schedule; `schedule_input` is a `ScheduleInput` of the API."""
        return await self._ask("POST", "/api/v1/schedules", {}, schedule_input)

    async def edit_schedule(self, which: str, changes: Document) -> Document:
        """Change the fields that `changes` names; return the schedule now."""
        return await self._ask("POST", f"/api/v1/schedules/{quote(which, safe='')}", {}, changes)

    async def steer_schedule(self, which: str, action: str) -> Document:
        """`pause`, `resume`, `fire` or `remove` a schedule; return its state now, or its last one."""
        return await self._post(f"/api/v1/schedules/{quote(which, safe='')}/{action}")

    async def _get(self, path: str, parameters: dict[str, str | int | None] | None = None) -> Document:
        query = {name: value for name, value in (parameters or {}).items() if value is not None}
        return await self._ask("GET", path, query)

    async def _post(self, path: str) -> Document:
        return await self._ask("POST", path, {})

    async def _ask(
        self, method: str, path: str, parameters: dict[str, str | int], body: Document | None = None
    ) -> Document:
        try:
            response = await self._http.request(method, path, params=parameters, json=body)
        except httpx2.HTTPError as error:
            raise self._unavailable(error) from error
        return _document(response, self.url)

    async def _events(self, path: str, parameters: dict[str, str]) -> AsyncGenerator[ApiEvent, None]:
        """Yield every event once, in order, through lost connections, until the stream ends."""
        last_id, pause_seconds, answered = "", 0.1, False
        lost_at: float | None = None
        while True:
            try:
                async with self._http.sse(
                    path,
                    params=parameters,
                    headers={"Last-Event-ID": last_id} if last_id else {},
                    timeout=httpx2.Timeout(STREAM_SILENCE_SECONDS, connect=5.0),
                ) as source:
                    if not source.response.is_success:
                        await source.response.aread()
                        _document(source.response, self.url)
                    answered, lost_at = True, None
                    async for event in source:
                        pause_seconds, last_id = 0.1, event.id or last_id
                        if event.data:
                            api_event = ApiEvent(event.event, orjson.loads(event.data), event.id)
                            yield api_event
                            if _is_last(api_event):
                                return
            except (httpx2.HTTPError, ServiceUnavailable) as error:
                lost_at = lost_at or time.monotonic()
                if not answered or time.monotonic() - lost_at > self._resume_seconds:
                    raise (
                        error if isinstance(error, ServiceUnavailable) else self._unavailable(error)
                    ) from error
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 5.0)

    def _unavailable(self, error: httpx2.HTTPError) -> ServiceUnavailable:
        return ServiceUnavailable("orchestrator", self.url, cause_in_words(error), _ADVICE)


def _parameters(filters: Filters) -> dict[str, str | int | None]:
    return {**filters}  # type: ignore[dict-item]  # of a TypedDict only that its values are objects is known


def _is_last(event: ApiEvent) -> bool:
    return event.name == "end" or (event.name == "run" and event.data.get("state") in FINAL)


def _document(response: httpx2.Response, url: str) -> Document:
    """Return the JSON object of an answer; a ServiceError for anything else."""
    try:
        document = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        document = None
    if response.is_success and isinstance(document, dict):
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        code, message = str(error.get("code", "error")), str(error.get("message", "no message"))
        if response.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            raise ServiceUnavailable("orchestrator", url, message)
        raise ServiceRefused(response.status_code, code, message)
    raise ServiceRefused(
        response.status_code,
        "not_the_api",
        f"{url} answered {response.status_code} {response.reason_phrase}, not as an orchestrator does: "
        "does SOLSTICE_URL name one?",
    )
