"""One event is one run through both stores, however often a forge sends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from solstice_common.broker import open_broker
from solstice_common.messages import JobRequestV1, Source
from solstice_common.messages.states import RunState
from solstice_forge.forges.samples import sign
from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job
from tests.integration.forge.pushes import received
from tests.stores import planning_task

SECRET = "maple-lantern-42"
REPOSITORY = {
    "full_name": "tide-club/almanac",
    "clone_url": "https://forge.example/tide-club/almanac.git",
    "default_branch": "main",
}
SENDER = {"login": "cleo"}
C = [f"{number:040x}" for number in range(1, 9)]
"""Commits, in the order in which they were made."""
BEGAN = 1_790_000_000
"""Long ago: all deliveries come late."""


@dataclass
class Sender:
    """A forge that sends to the service, and the results in both stores."""

    client: httpx2.AsyncClient
    settings: ForgeSettings
    store: JobStore

    async def sends(
        self, origin: Source, event: str, body: bytes, delivery_id: str, *, source: str = ""
    ) -> dict[str, Any]:
        headers = sign(origin, SECRET, event=event, body=body, delivery_id=delivery_id, now=0)
        answer = await self.client.post(f"/webhooks/{source or origin}", content=body, headers=headers)
        assert answer.is_success, answer.text
        return dict(answer.json())

    async def requests(self, count: int) -> Sequence[JobRequestV1]:
        """The next ones on the broker."""
        async with open_broker(self.settings.amqp_url, name="test") as broker:
            return await received(broker, self.settings, count)

    async def states(self, count: int) -> dict[str, RunState]:
        """The run states of the next requests by commit, planned in their order."""
        for request in await self.requests(count):
            await self.store.admit([request])
            assert await self.store.planned(await planning_task(self.store), [job("true")])
        runs = (await self.store.runs(limit=100)).runs
        return {run.commit_sha: run.state for run in runs}


@pytest.fixture
async def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sender]:
    for name in ForgeSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("OUR_SECRET", SECRET)
    sources: list[tuple[str, Source]] = [(name, name) for name in Source if name is not Source.MANUAL]
    sources.append(("organisation", Source.GITHUB))
    config = tmp_path / "forges.toml"
    config.write_text(
        "".join(
            f'[sources.{name}]\nforge = "{origin}"\nurl = "https://forge.example"\nsecrets = ["env:OUR_SECRET"]\n'
            for name, origin in sources
        )
    )
    settings = ForgeSettings.model_validate(
        {
            "forge_port": 0,
            "forge_config": str(config),
            "forge_inbox_url": f"sqlite:///{tmp_path / 'inbox.db'}",
            "amqp_url": f"sqlite:///{tmp_path / 'broker.db'}",
            "solstice_tokens": tmp_path / "tokens.json",
        }
    )
    stop = asyncio.Event()
    where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(stop.set)
        tasks.create_task(
            serve(
                settings,
                stop=stop,
                listening=lambda host, port: where.set_result(f"http://{host}:{port}"),
            ),
            name="forge-integration",
        )
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=await where, timeout=30))
        store = await stack.enter_async_context(open_store(f"sqlite:///{tmp_path / 'store.db'}"))
        yield Sender(client, settings, store)


def pushed(number: int, *, timed: bool = True) -> bytes:
    """The `number`th commit was pushed onto the one before it, an hour ago."""
    repository = {**REPOSITORY, "pushed_at": moment(number)} if timed else REPOSITORY
    reported = {"before": C[number - 1], "after": C[number]}
    return orjson.dumps({"ref": "refs/heads/spring", **reported, "repository": repository, "sender": SENDER})


def pushed_untimed(number: int) -> bytes:
    """The same push in Gitea's form."""
    return pushed(number, timed=False)


def moment(number: int) -> int:
    return BEGAN + 60 * number


def written(number: int) -> str:
    return datetime.fromtimestamp(moment(number), UTC).isoformat()


def change(number: int) -> bytes:
    """Change request 7 has the `number`th commit as its head now."""
    side = {"ref": "spring", "sha": C[number], "repo": REPOSITORY, "repo_id": 1}
    return orjson.dumps(
        {
            "action": "synchronize",
            "number": 7,
            "pull_request": {
                "head": side,
                "base": {**side, "ref": "main"},
                "updated_at": written(number),
            },
            "repository": REPOSITORY,
            "sender": SENDER,
        }
    )


def merge_request(number: int) -> bytes:
    """The same change in GitLab's form."""
    project = {"path_with_namespace": "tide-club/almanac", "git_http_url": REPOSITORY["clone_url"]}
    return orjson.dumps(
        {
            "object_kind": "merge_request",
            "project": project,
            "object_attributes": {
                "action": "update",
                "oldrev": C[number - 1],
                "updated_at": written(number).replace("T", " ").replace("+00:00", " UTC"),
                "iid": 7,
                "source_branch": "spring",
                "target_branch": "main",
                "source_project_id": 1,
                "target_project_id": 1,
                "last_commit": {"id": C[number]},
            },
        }
    )


ALIKE = pytest.mark.parametrize(
    ("origin", "event", "body"),
    [
        (Source.GITHUB, "push", pushed(1)),
        (Source.FORGEJO, "pull_request", change(1)),
        (Source.GITEA, "push", pushed(1)),
        (Source.GITLAB, "Merge Request Hook", merge_request(1)),
    ],
    ids=["github push", "forgejo change", "gitea push", "gitlab change"],
)


@ALIKE
async def test_fifty_copies_at_once_are_one_run(
    forge: Sender, origin: Source, event: str, body: bytes
) -> None:
    answers = await asyncio.gather(*(forge.sends(origin, event, body, "d-1") for _ in range(50)))
    decisions = [answer["decision"] for answer in answers]
    assert (decisions.count("accepted"), decisions.count("duplicate")) == (1, 49)
    assert len({tuple(answer["request_ids"]) for answer in answers}) == 1
    assert await forge.states(1) == {C[1]: RunState.WAITING}


@ALIKE
async def test_fifty_replays_under_ids_of_their_own_are_one_run(
    forge: Sender, origin: Source, event: str, body: bytes
) -> None:
    answers = await asyncio.gather(
        *(forge.sends(origin, event, body, f"replay-{number}") for number in range(50))
    )
    assert [answer["decision"] for answer in answers].count("accepted") == 1
    assert {answer["reason"] for answer in answers if answer["decision"] == "duplicate"} == {
        "duplicate_content"
    }
    assert await forge.states(1) == {C[1]: RunState.WAITING}


async def test_event_over_the_hooks_of_repository_and_organisation_is_one_run(forge: Sender) -> None:
    first, second = await asyncio.gather(
        forge.sends(Source.GITHUB, "push", pushed(1), "d-1"),
        forge.sends(Source.GITHUB, "push", pushed(1), "d-2", source="organisation"),
    )
    assert sorted([first["decision"], second["decision"]]) == ["accepted", "duplicate"]
    assert first["request_ids"] == second["request_ids"]
    assert await forge.states(1) == {C[1]: RunState.WAITING}


def rerun(check: int) -> bytes:
    run = {"id": check, "head_sha": C[1], "name": "solstice/test"}
    return orjson.dumps(
        {"action": "rerequested", "check_run": run, "repository": REPOSITORY, "sender": SENDER}
    )


async def test_rerun_that_a_person_asks_for_is_a_new_run_each_time_and_ends_no_other(forge: Sender) -> None:
    await forge.sends(Source.GITHUB, "push", pushed(1), "d-1")
    first = await forge.sends(Source.GITHUB, "check_run", rerun(4), "d-2")
    again = await forge.sends(Source.GITHUB, "check_run", rerun(4), "d-2")
    second = await forge.sends(Source.GITHUB, "check_run", rerun(4), "d-3")
    assert [one["decision"] for one in (first, again, second)] == ["accepted", "duplicate", "accepted"]
    await forge.states(3)
    runs = (await forge.store.runs(limit=10)).runs
    assert sorted(str(run.event) for run in runs) == ["push", "rerun", "rerun"]
    assert {run.state for run in runs} == {RunState.WAITING}


@pytest.mark.parametrize(
    ("origin", "event", "make"),
    [
        (Source.GITHUB, "push", pushed),
        (Source.GITHUB, "pull_request", change),
        (Source.GITEA, "pull_request", change),
        (Source.GITLAB, "Merge Request Hook", merge_request),
    ],
    ids=["github push", "github change", "gitea change", "gitlab change"],
)
@pytest.mark.parametrize("order", [(2, 1), (3, 1, 2)], ids=str)
async def test_older_delivery_that_comes_late_takes_no_newer_ones_place(
    forge: Sender, origin: Source, event: str, make: Callable[[int], bytes], order: tuple[int, ...]
) -> None:
    for number in order:
        await forge.sends(origin, event, make(number), f"d-{number}")
    await assert_the_newest_is_left(forge, order)


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 3, 2)], ids=str)
async def test_without_times_pushes_are_ordered_by_their_previous_commits(
    forge: Sender, order: tuple[int, ...]
) -> None:
    for number in order:
        await forge.sends(Source.GITEA, "push", pushed_untimed(number), f"d-{number}")
    await assert_the_newest_is_left(forge, order)


async def assert_the_newest_is_left(forge: Sender, order: tuple[int, ...]) -> None:
    states = await forge.states(len(order))
    newest = max(order)
    assert states[C[newest]] is RunState.WAITING
    assert {states[C[number]] for number in order if number != newest} == {RunState.CANCELLED}
