"""Deliveries that lack something, in a real inbox, completed by the fakes of the forges."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from solstice_common.broker import open_broker
from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.events import IgnoreReason
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter
from solstice_forge.inbox.protocol import Decision, KeepResult
from solstice_forge.inbox.sqlite.inbox import SqliteInbox
from solstice_forge.lookups.forge_questions import APPROVAL_SECONDS
from solstice_forge.lookups.lookup_service import LEASE_SECONDS, LookupService
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import Remote
from solstice_forge.remote.protocol import ForgeAccess
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import received
from tests.servers.forge_api import TOKEN, Change, ForgeApi, Reply, Reset, forge_api
from tests.webhooks.deliveries import deliveries

SHA = "d4" * 20
NAMES = itertools.count()


@dataclass
class AskerSetup:
    """An inbox, a fake forge behind one source, its lookup service, and a clock."""

    inbox: SqliteInbox
    forge: ForgeApi
    source: WebhookSource
    remotes: Mapping[str, Remote]
    now: float = 1_790_000_000.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def inquirer(self) -> LookupService:
        return LookupService(
            inbox=self.inbox,
            sources={self.source.name: self.source},
            remotes=self.remotes,
            metrics=Metrics(),
            rng=self.rng,
            clock=lambda: self.now,
        )

    async def arrives(self, name: str, **changes: Any) -> KeepResult:
        """The delivery of that name from tests/webhooks, with these parts of its payload instead."""
        one = deliveries()[name]
        body = orjson.dumps({**orjson.loads(one.body), **changes})
        understood = triage(self.source, one.headers, body, now=self.now, verify=False)
        assert isinstance(understood, UnderstoodDelivery)
        fresh = replace(understood, delivery_id=f"{understood.delivery_id} {next(NAMES)}")
        return await self.inbox.keep(new_delivery(self.source, one.headers, fresh, self.now))

    async def asks(self) -> None:
        """Run one round: all due lookups."""
        await self.inquirer.ask_due()

    async def requests(self) -> list[JobRequestV1]:
        return [JobRequestV1.decode(one.request) for one in await self.inbox.pending(100)]

    async def entry(self) -> DeliveryEntry:
        (entry,) = (await self.inbox.entries(DeliveryFilter(), limit=10)).entries
        return entry


@asynccontextmanager
async def asker_setup(
    origin: Source, folder: Path, *, token: str | None = TOKEN
) -> AsyncIterator[AskerSetup]:
    async with forge_api(origin) as forge, SqliteInbox.open(f"sqlite:///{folder}/inbox.db") as inbox:
        source = WebhookSource(name="acme", forge=FORGES[origin], secrets=("s",), url=forge.url, token=token)
        made = AskerSetup(inbox=inbox, forge=forge, source=source, remotes={})
        access = ForgeAccess(name="acme", origin=origin, url=forge.url, token=token)
        async with Remote.open(access, clock=lambda: made.now) as remote:
            made.remotes = {"acme": remote} if token else {}
            yield made


@asynccontextmanager
async def asking(setup: AskerSetup) -> AsyncIterator[None]:
    """The running lookup service."""
    running = asyncio.create_task(setup.inquirer.run(), name="inquirer")
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


async def requested(setup: AskerSetup) -> None:
    """Wait, advancing the clock, until a request is ready to be published."""
    async with asyncio.timeout(90):
        while not await setup.requests():
            setup.now += 1.0
            await asyncio.sleep(0.02)


async def test_comment_becomes_a_run_of_the_head_commit(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA, fork="ben-stone/beacon")
        stored = await setup.arrives("github/comment-retest")
        assert (stored.decision, stored.reason) == (Decision.ACCEPTED, "comment")
        assert await setup.requests() == []
        await setup.asks()
        (request,) = await setup.requests()
        assert (request.request_id,) == stored.request_ids
        assert (request.commit_sha, request.change_number, request.event) == (SHA, 12, "change_request")
        assert request.trusted is False
        assert request.head_repo_url == f"{setup.forge.url}/ben-stone/beacon.git"
        await setup.asks()
        assert len(await setup.requests()) == 1
        assert len(setup.forge.calls) == 2


async def test_comment_that_cancels_becomes_a_cancel_whether_the_change_request_is_open_or_not(
    tmp_path: Path,
) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        stored = await setup.arrives("github/comment-cancel")
        assert (stored.decision, stored.reason) == (Decision.ACCEPTED, "cancel")
        await setup.asks()
        (pending,) = await setup.inbox.pending(100)
        cancel = JobCancelV1.decode(pending.request)
        assert (cancel.cancel_id,) == stored.request_ids
        assert (cancel.change_number, cancel.sender) == (12, "ada-brook")
        assert len(setup.forge.calls) == 1
        assert "#12" in (await setup.entry()).detail


async def test_comment_of_an_author_without_rights_cancels_nothing(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "read"
        await setup.arrives("github/comment-cancel")
        await setup.asks()
        entry = await setup.entry()
        assert (entry.decision, entry.reason) == (Decision.IGNORED, IgnoreReason.NOT_ALLOWED)
        assert "/cancel" in entry.detail
        assert await setup.inbox.pending(100) == []


async def test_release_and_note_of_other_forges(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        await setup.arrives("gitea/release-published")
        await setup.asks()
        (request,) = await setup.requests()
        assert (request.commit_sha, request.ref, request.trusted) == (SHA, "refs/tags/v2.0", True)


async def test_note_of_gitlab_is_of_the_commit_it_names(tmp_path: Path) -> None:
    async with asker_setup(Source.GITLAB, tmp_path) as setup:
        setup.forge.rights["orchard/trees/pear", 4] = "write"
        setup.forge.changes["orchard/trees/pear", 8] = Change(sha=SHA)
        await setup.arrives("gitlab/note-retest")
        await setup.asks()
        (request,) = await setup.requests()
        assert (request.commit_sha, request.trusted) == ("ff70f4c33de2200b76651bbe1e54aa55fcd77447", True)


@pytest.mark.parametrize("right", ["read", None])
async def test_comment_of_an_author_without_rights_ends_with_the_reason(
    tmp_path: Path, right: str | None
) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        if right:
            setup.forge.rights["harbour-lights/beacon", "ada-brook"] = right
        await setup.arrives("github/comment-retest")
        await setup.asks()
        entry = await setup.entry()
        assert (entry.decision, entry.reason) == (Decision.IGNORED, IgnoreReason.NOT_ALLOWED)
        assert "/retest" in entry.detail
        assert entry.request_ids == ()
        assert await setup.requests() == []
        assert await setup.inbox.next_lookup_at() is None


async def test_what_the_forge_does_not_know_ends_with_the_reason(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        await setup.arrives("gitea/release-published")
        await setup.asks()
        entry = await setup.entry()
        assert (entry.decision, entry.reason) == (Decision.IGNORED, IgnoreReason.NOT_AT_FORGE)
        assert "404" in entry.detail


async def test_without_a_token_it_ends_with_the_reason(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path, token=None) as setup:
        await setup.arrives("gitea/release-published")
        await setup.asks()
        entry = await setup.entry()
        assert (entry.decision, entry.reason) == (Decision.IGNORED, IgnoreReason.NO_ACCESS)
        assert setup.forge.calls == []


@pytest.mark.parametrize(
    "trouble", [Reply(status=500), Reply(status=401), Reset(), Reply(document={"commit": {}})], ids=str
)
async def test_what_fails_now_is_asked_again_later(tmp_path: Path, trouble: Reply | Reset) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        setup.forge.next(trouble)
        await setup.arrives("gitea/release-published")
        await setup.asks()
        assert await setup.requests() == []
        assert (await setup.entry()).decision is Decision.ACCEPTED
        due = await setup.inbox.next_lookup_at()
        assert due is not None
        setup.now = max(due, setup.now)
        await setup.asks()
        assert [one.commit_sha for one in await setup.requests()] == [SHA]


async def test_limit_is_obeyed_before_it_is_asked_again(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA)
        setup.forge.next(Reply(status=429, headers={"retry-after": "600"}))
        await setup.arrives("github/comment-retest")
        await setup.asks()
        due = await setup.inbox.next_lookup_at()
        assert due is not None
        assert due >= setup.now + 600
        setup.now += 599
        await setup.asks()
        assert len(setup.forge.calls) == 1
        setup.now = due
        await setup.asks()
        assert len(await setup.requests()) == 1


async def test_forge_that_is_away_for_a_day_is_asked_no_more(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.behave(lambda _request: Reply(status=503, headers={"retry-after": "1800"}))
        await setup.arrives("gitea/release-published")
        began = setup.now
        while (due := await setup.inbox.next_lookup_at()) is not None:
            setup.now = max(due, setup.now)
            await setup.asks()
        assert 23 * 3600 < setup.now - began <= 24 * 3600
        assert (await setup.entry()).reason == IgnoreReason.TOO_LATE
        assert 40 < len(setup.forge.calls) <= 49


async def test_approval_is_for_the_commit_of_its_moment_alone(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA, fork="ben-stone/beacon")
        await setup.arrives("github/comment-retest", comment={"id": 6, "body": "/ok-to-test"})
        setup.now += 300  # no process ran to ask
        await setup.asks()
        assert (await setup.entry()).reason == IgnoreReason.TOO_LATE
        assert setup.forge.calls == []


async def test_approval_outlives_the_process_that_took_it_first(tmp_path: Path) -> None:
    assert LEASE_SECONDS < APPROVAL_SECONDS
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA, fork="ben-stone/beacon")
        await setup.arrives("github/comment-retest", comment={"id": 6, "body": "/ok-to-test"})
        await setup.inbox.take_lookups(setup.now, until=setup.now + LEASE_SECONDS, limit=5)
        setup.now += LEASE_SECONDS
        await setup.asks()
        assert [one.approves for one in await setup.requests()] == [True]


async def test_approved_commit_of_a_fork_is_untrusted_and_does_not_wait(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA, fork="ben-stone/beacon")
        await setup.arrives("github/comment-retest", comment={"id": 6, "body": "/ok-to-test"})
        await setup.arrives("github/comment-retest", comment={"id": 7, "body": "/retest"})
        await setup.asks()
        approved, again = await setup.requests()
        assert (approved.trusted, approved.approves, approved.needs_approval) == (False, True, None)
        assert (again.trusted, again.approves, again.needs_approval) == (False, None, True)


@pytest.mark.parametrize("of_branch", [True, False], ids=["the branch's", "another"])
async def test_rerun_is_trusted_when_the_forge_knows_the_commit_as_its_own(
    tmp_path: Path, of_branch: bool
) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        sha = "a295e0bdde1938d1fbfd343e5a3e569e868e1465"
        setup.forge.refs["harbour-lights/beacon", "refs/heads/main"] = sha if of_branch else SHA
        check = {"head_sha": sha, "name": "solstice/test", "check_suite": {"head_branch": "main"}}
        stored = await setup.arrives("github/check-run-rerequested", check_run=check)
        assert stored.reason == "rerun"
        await setup.asks()
        (request,) = await setup.requests()
        assert (request.commit_sha, request.workflow_job_id, request.trusted) == (sha, "test", of_branch)


async def test_same_comment_over_two_hooks_is_one_run_and_a_second_comment_another(tmp_path: Path) -> None:
    async with asker_setup(Source.GITHUB, tmp_path) as setup:
        setup.forge.rights["harbour-lights/beacon", "ada-brook"] = "write"
        setup.forge.changes["harbour-lights/beacon", 12] = Change(sha=SHA)
        copies = await asyncio.gather(*(setup.arrives("github/comment-retest") for _ in range(50)))
        assert [one.decision for one in copies].count(Decision.ACCEPTED) == 1
        assert {one.request_ids for one in copies} == {copies[0].request_ids}
        await setup.asks()
        assert (await setup.arrives("github/comment-retest")).decision is Decision.DUPLICATE
        another = await setup.arrives("github/comment-retest", comment={"id": 6, "body": "/retest"})
        assert another.decision is Decision.ACCEPTED
        await setup.asks()
        assert len({one.request_id for one in await setup.requests()}) == 2


async def test_what_a_process_took_and_did_not_finish_is_taken_again(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        await setup.arrives("gitea/release-published")
        (lookup,) = await setup.inbox.take_lookups(setup.now, until=setup.now + 60, limit=5)
        assert await setup.inbox.take_lookups(setup.now, until=setup.now + 60, limit=5) == []
        await setup.asks()
        assert await setup.requests() == []
        setup.now += 60
        await setup.asks()
        assert len(await setup.requests()) == 1
        # The process comes back: settled lookups stay settled.
        await setup.inbox.declined(lookup.row_id, "not_allowed", "late")
        await setup.inbox.lookup_postponed(lookup.row_id, setup.now, "late")
        assert (await setup.entry()).decision is Decision.ACCEPTED
        assert await setup.inbox.next_lookup_at() is None


async def test_mistake_of_ours_ends_one_delivery_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise LookupError(given)

    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        await setup.arrives("gitea/release-published")
        monkeypatch.setattr("solstice_forge.lookups.lookup_service.plan", broken)
        for _ in range(5):
            await setup.asks()
            setup.now += 600
        entry = await setup.entry()
        assert (entry.decision, entry.reason) == (Decision.IGNORED, IgnoreReason.UNUSABLE)
        assert "LookupError" in entry.detail
        assert await setup.inbox.next_lookup_at() is None


async def test_inbox_that_is_away_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup:
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        await setup.arrives("gitea/release-published")
        complete, failures = setup.inbox.lookup_answered, 0

        async def fails_once(row_id: int, request: bytes) -> None:
            nonlocal failures
            if failures < 1:
                failures += 1
                # The lease would have to run out first.
                setup.now += 600
                raise StoreUnavailable("the inbox", "for the test")
            await complete(row_id, request)

        monkeypatch.setattr(setup.inbox, "lookup_answered", fails_once)
        monkeypatch.setattr("solstice_forge.lookups.lookup_service.STORE_RETRY_SECONDS", 0.01)
        async with asking(setup):
            await requested(setup)
        assert failures == 1


async def test_it_wakes_for_what_is_kept(tmp_path: Path) -> None:
    async with asker_setup(Source.GITEA, tmp_path) as setup, asking(setup):
        setup.forge.refs["tide-club/almanac", "refs/tags/v2.0"] = SHA
        await setup.arrives("gitea/release-published")
        await requested(setup)


async def test_comment_is_answered_first_and_is_a_request_on_the_broker_then(
    tmp_path: Path, make_settings: MakeSettings, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = deliveries()["forgejo/comment-ok-to-test"]
    monkeypatch.setenv("OUR_SECRET", one.secret)
    monkeypatch.setenv("OUR_TOKEN", TOKEN)
    async with forge_api(Source.FORGEJO) as forge:
        payload = orjson.loads(one.body)
        repository, login = payload["repository"]["full_name"], payload["sender"]["login"]
        forge.rights[repository, login] = "admin"
        forge.changes[repository, 4] = Change(sha=SHA, fork="dora/fork")
        config = tmp_path / "forges.toml"
        config.write_text(
            f'[sources.acme]\nforge = "forgejo"\nurl = "{forge.url}"\n'
            'secrets = ["env:OUR_SECRET"]\ntoken = "env:OUR_TOKEN"\n'
        )
        settings = make_settings(forge_config=str(config))
        async with running(settings) as client:
            answer = await client.post("/webhooks/acme", content=one.body, headers=dict(one.headers))
            assert (answer.status_code, answer.json()["reason"]) == (202, "comment")
            async with open_broker(settings.amqp_url, name="test") as broker:
                (request,) = await received(broker, settings, 1)
            metrics = (await client.get("/metrics")).text
    assert [request.request_id] == answer.json()["request_ids"]
    assert (request.commit_sha, request.change_number, request.approves) == (SHA, 4, True)
    assert 'solstice_forge_lookups_total{outcome="answered",source="acme"} 1.0' in metrics
