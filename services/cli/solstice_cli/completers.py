"""Completes ids and names that the orchestrator knows. Without its answer there are none."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import typer

from solstice_cli.output.display import SHORT_ID, now_utc
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import found_settings
from solstice_common.messages.states import FINAL
from solstice_common.settings import ClientSettings
from solstice_common.values.times import ago, parse_timestamp

SECONDS: Final = 2.0
NEWEST: Final = 100
LEAST_OF_AN_ID: Final = 4
"""Characters from which on an id is completed from its beginning; all new ids begin alike."""

Found = Iterable[tuple[str, str]]
Request = Callable[[OrchestratorClient], Awaitable[Found]]


def runs(context: typer.Context, incomplete: str) -> Found:
    """Return the newest runs."""
    return _ids(incomplete, _answer(context, _runs))


def jobs(context: typer.Context, incomplete: str) -> Found:
    """Return the newest jobs."""
    return _ids(incomplete, _answer(context, _jobs))


def runs_and_jobs(context: typer.Context, incomplete: str) -> Found:
    """Return the newest runs, and then the newest jobs."""

    async def both(api: OrchestratorClient) -> Found:
        return [*await _runs(api), *await _jobs(api)]

    return _ids(incomplete, _answer(context, both))


def unfinished(context: typer.Context, incomplete: str) -> Found:
    """Return the newest runs and jobs that have not ended."""

    async def both(api: OrchestratorClient) -> Found:
        return [*await _runs(api, ended=False), *await _jobs(api, ended=False)]

    return _ids(incomplete, _answer(context, both))


def dead_letters(context: typer.Context, incomplete: str) -> Found:
    """Return the oldest dead letters."""

    async def request(api: OrchestratorClient) -> Found:
        return [
            (each["id"], f"{each['reason']}, {each['repository'] or each['queue']}")
            for each in await api.dead_letters(limit=NEWEST)
        ]

    return [each for each in _answer(context, request) if each[0].startswith(incomplete)]


def artifacts(context: typer.Context, incomplete: str) -> Found:
    """Return the names of the artifacts of the run or job that was named before."""

    async def request(api: OrchestratorClient) -> Found:
        kind, named = await find(api, context.params["which"])
        return [
            (each["name"], f"of {each['job']}, {each['size']} bytes")
            for each in await api.artifacts(named["run_id"])
            if kind == "run" or each["job_id"] == named["job_id"]
        ]

    return [each for each in _answer(context, request) if each[0].startswith(incomplete)]


def caches(context: typer.Context, incomplete: str) -> Found:
    """Return the ids of caches."""

    async def request(api: OrchestratorClient) -> Found:
        return [
            (each["cache_id"], f"{each['key']}, {each['repository']}, {each['scope']}")
            for each in await api.caches()
        ]

    return [each for each in _answer(context, request) if each[0].startswith(incomplete)]


def workers(context: typer.Context) -> Found:
    """Return the names of workers."""

    async def request(api: OrchestratorClient) -> Found:
        return [(each["name"], f"{each['state']} on {each['host']}") for each in await api.workers()]

    return _answer(context, request)


def schedules(context: typer.Context) -> Found:
    """Return the names of schedules."""

    async def request(api: OrchestratorClient) -> Found:
        page = await api.schedules(limit=NEWEST)
        return [
            (each["name"], f"{each['cron']} {each['branch']} of {_repository(each)}")
            for each in page["schedules"]
        ]

    return _answer(context, request)


def labels(context: typer.Context) -> Found:
    """Return the labels that have work or slots."""

    async def request(api: OrchestratorClient) -> Found:
        return [(label, "") for label in (await api.scale())["labels"]]

    return _answer(context, request)


def repositories(context: typer.Context) -> Found:
    """Return the repositories of the newest runs."""

    async def request(api: OrchestratorClient) -> Found:
        page = await api.runs(limit=NEWEST)
        return [(name, "") for name in dict.fromkeys(map(_repository, page["runs"]))]

    return _answer(context, request)


def branches(context: typer.Context) -> Found:
    """Return the branches of the newest runs, of the chosen repository if there is one."""

    async def request(api: OrchestratorClient) -> Found:
        page = await api.runs(limit=NEWEST, repository=context.params.get("repository"))
        names = (each["ref"].removeprefix("refs/heads/") for each in page["runs"] if each["ref"])
        return [(name, "") for name in dict.fromkeys(names)]

    return _answer(context, request)


async def _runs(api: OrchestratorClient, *, ended: bool = True) -> Found:
    return [
        (run["run_id"], f"run of {_repository(run)}, {run['state']}, {_ago(run)}")
        for run in (await api.runs(limit=NEWEST))["runs"]
        if ended or run["state"] not in FINAL
    ]


async def _jobs(api: OrchestratorClient, *, ended: bool = True) -> Found:
    return [
        (job["job_id"], f"job {job['name']}, {job['state']}, {_ago(job)}")
        for job in (await api.jobs(limit=NEWEST))["jobs"]
        if ended or job["state"] not in FINAL
    ]


def _ids(incomplete: str, found: Found) -> Found:
    """Return the ends of ids, which lists show and which differ.

    For a long beginning also the whole ids.
    """
    whole = len(incomplete) >= LEAST_OF_AN_ID
    return [
        (value, meaning)
        for each, meaning in found
        for value in (each[-SHORT_ID:], *((each,) if whole else ()))
        if value.startswith(incomplete)
    ]


def _repository(document: Document) -> str:
    return str(document.get("repo_full_name") or document["repo_url"])


def _ago(document: Document) -> str:
    return ago((now_utc() - parse_timestamp(document["created_at"])).total_seconds())


def _answer(context: typer.Context, request: Request) -> Found:
    """Ask the orchestrator that the line, the environment or the running `solstice up` names."""
    url = context.params.get("solstice_url")
    settings = found_settings(ClientSettings, {} if url is None else {"solstice_url": url})

    async def answered() -> Found:
        async with asyncio.timeout(SECONDS), OrchestratorClient.of(settings) as api:
            return await request(api)

    # Unlike `asyncio.run`, this does not wait for a name server that does not answer.
    return asyncio.new_event_loop().run_until_complete(answered())
