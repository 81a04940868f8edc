"""Lost deliveries are found at fake forges, redelivered or made up for, and built once."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.errors import StoreUnavailable
from solstice_common.messages import JobRequestV1, Source
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.rules import Rule
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import triage
from solstice_forge.forges.samples import push_body, sign
from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter
from solstice_forge.inbox.protocol import Decision, KeepResult
from solstice_forge.metrics import Metrics
from solstice_forge.reconcile.calls import LEASE_SECONDS
from solstice_forge.reconcile.compare_heads import SETTLE_SECONDS
from solstice_forge.reconcile.report import ReconcileReport
from solstice_forge.reconcile.resending import FIRST_PAUSE_SECONDS, MOST_TIMES
from solstice_forge.reconcile.rounds import LIMIT_WAIT_SECONDS, Reconciler
from solstice_forge.remote.http import CallTimeouts, Remote
from solstice_forge.remote.protocol import AppCredentials, ForgeAccess
from tests.servers.forge_api import (
    TOKEN,
    Change,
    Delayed,
    ForgeApi,
    Reply,
    Reset,
    Trouble,
    Truncated,
    Window,
    forge_api,
)
from tests.servers.forge_record import FakeHook, HookRecord, show_heads
from tests.servers.postgresql import ScratchDatabase

NOW = 1_790_000_000.0
OTTER = "river/otter"
PLACES = {Source.GITHUB: f"repos/{OTTER}", Source.GITLAB: f"projects/{OTTER}"}
WITH_RECORD = pytest.mark.parametrize("origin", [Source.GITHUB, Source.GITLAB])
WITH_HEADS = pytest.mark.parametrize("origin", [Source.FORGEJO, Source.GITEA])


def sha(number: int) -> str:
    return f"{number:040x}"


@pytest.fixture(params=["sqlite", "postgresql"])
def inbox_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'inbox.db'}"
    database: ScratchDatabase = request.getfixturevalue("postgresql_database")
    return database.url


@dataclass
class ReconcileSetup:
    """An inbox, a fake forge behind the source `acme`, its reconciler, and a clock.

    Sleeping moves the clock.
    """

    inbox: InboxStore
    forge: ForgeApi
    source: WebhookSource
    remotes: Mapping[str, Remote]
    now: float = NOW
    slept: list[float] = field(default_factory=list)
    report_lines: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    def reconciler(self, inbox: InboxStore | None = None) -> Reconciler:
        return Reconciler(
            inbox=inbox or self.inbox,
            sources={self.source.name: self.source},
            remotes=self.remotes,
            metrics=self.metrics,
            rng=random.Random(1),
            clock=lambda: self.now,
            sleep=self.sleep,
            report_progress=self.report_lines.append,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def compare(
        self,
        *,
        repository: str | None = None,
        since_seconds: float | None = None,
        dry_run: bool = False,
        inbox: InboxStore | None = None,
    ) -> ReconcileReport:
        report = await self.reconciler(inbox).compare(
            "acme", repository=repository, since_seconds=since_seconds, dry_run=dry_run
        )
        assert report is not None
        return report

    async def arrives(
        self, number: int, *, ref: str = "refs/heads/main", delivery_id: str = ""
    ) -> KeepResult:
        """Deliver the push of the `number`th commit, then let half a minute go by."""
        origin = self.source.forge.SOURCE
        body = push_body(
            origin,
            repo_url=f"{self.forge.url}/{OTTER}.git",
            repo_full_name=OTTER,
            ref=ref,
            sha=sha(number),
        )
        name = "Push Hook" if origin is Source.GITLAB else "push"
        headers = sign(
            origin, "s", event=name, body=body, delivery_id=delivery_id or f"d-{number}", now=self.now
        )
        return await self.takes(headers, body)

    async def takes(self, headers: Mapping[str, str], body: bytes) -> KeepResult:
        understood = triage(self.source, headers, body, now=self.now, verify=False)
        assert isinstance(understood, UnderstoodDelivery)
        stored = await self.inbox.keep(new_delivery(self.source, headers, understood, self.now))
        self.now += 60
        return stored

    async def requests(self) -> list[JobRequestV1]:
        return [JobRequestV1.decode(one.request) for one in await self.inbox.pending(100)]

    async def entries(self) -> list[DeliveryEntry]:
        return list((await self.inbox.entries(DeliveryFilter(), limit=50)).entries)

    def call_count(self, path: str) -> int:
        return sum(path in request.path for request, _ in self.forge.calls)


@asynccontextmanager
async def reconcile_setup(
    origin: Source, url: str, *rules: Rule, app: bool = False, whole: float = 15.0
) -> AsyncIterator[ReconcileSetup]:
    async with forge_api(origin) as forge, open_inbox(url) as inbox:
        key = AppCredentials(id=forge.app_id, private_key=forge.app_pem) if app else None
        token = None if app else TOKEN
        source = WebhookSource(
            name="acme", forge=FORGES[origin], secrets=("s",), url=forge.url, token=token, rules=rules
        )
        made = ReconcileSetup(inbox=inbox, forge=forge, source=source, remotes={})
        access = ForgeAccess(name="acme", origin=origin, url=forge.url, token=token, app=key)
        timeouts = CallTimeouts(connect=5.0, read=whole, total=whole)
        async with Remote.open(access, clock=lambda: made.now, timeouts=timeouts) as remote:
            made.remotes = {"acme": remote}
            if origin in {Source.FORGEJO, Source.GITEA}:
                show_heads(forge)
            yield made


def recorded(setup: ReconcileSetup, place: str | None = None) -> tuple[HookRecord, FakeHook]:
    """A forge that has a hook which calls us; nothing is listening there."""
    record = HookRecord(
        setup.forge, url=lambda: "http://127.0.0.1:9/webhooks/acme", secret="s", clock=lambda: setup.now
    )
    return record, record.hook(place or PLACES[setup.forge.origin])


# GitHub and GitLab: by their own record.


@WITH_RECORD
async def test_what_failed_and_did_not_come_is_asked_for_again_and_nothing_else(
    origin: Source, inbox_url: str
) -> None:
    async with reconcile_setup(origin, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1, delivery_id="too slow for the forge")
        record.failed(hook, "too slow for the forge", status=504)
        record.failed(hook, "lost")
        record.failed(hook, "later well", status=503)
        record.failed(hook, "later well", status=202)
        record.failed(hook, "well", status=200)
        report = await setup.compare()
        await record.settled()
        assert [guid for _, guid in record.requested] == ["lost"]
        assert [(each.delivery_id, each.place, each.times) for each in report.sent] == [("lost", OTTER, 1)]
        assert (report.troubles, report.repositories) == ((), 1)


async def test_deliveries_of_others_hooks_are_none_of_our_business(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        record, _ = recorded(setup)
        chat = record.hook(PLACES[Source.GITHUB], url="https://chat.example/webhooks/acme-room")
        record.failed(chat, "for the chat")
        await setup.arrives(1)
        assert (await setup.compare()).sent == ()
        assert setup.call_count(f"/hooks/{chat.id}") == 0


@WITH_RECORD
async def test_nothing_is_asked_for_more_often_than_is_sensible(origin: Source, inbox_url: str) -> None:
    async with reconcile_setup(origin, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        record.failed(hook, "lost")
        given_up: set[str] = set()
        for _ in range(40):
            given_up.update((await setup.compare()).given_up)
            await record.settled()
            setup.now += FIRST_PAUSE_SECONDS / 2
        assert len(record.requested) == MOST_TIMES
        first, second, third = (when for when, _ in record.requested)
        assert second - first >= FIRST_PAUSE_SECONDS
        assert third - second >= 2 * FIRST_PAUSE_SECONDS
        assert len(hook.of("lost")) == 1 + MOST_TIMES
        assert given_up == {"lost"}


@WITH_RECORD
async def test_pages_are_read_to_what_was_dealt_with_before(origin: Source, inbox_url: str) -> None:
    async with reconcile_setup(origin, inbox_url) as setup:
        record, hook = recorded(setup)
        record.most_per_page = 4
        await setup.arrives(1)
        for number in range(30):
            record.failed(hook, f"well-{number}", status=200, age=7200)
        record.failed(hook, "lost", age=7100)
        for number in range(10):
            record.failed(hook, f"fine-{number}", status=200, age=7000)
        assert [each.delivery_id for each in (await setup.compare()).sent] == ["lost"]
        listed = "/deliveries" if origin is Source.GITHUB else "/events"
        whole = setup.call_count(listed)
        assert whole >= 11
        await setup.arrives(2, delivery_id="lost")
        await setup.compare()
        before = setup.call_count(listed)
        record.failed(hook, "new")
        assert [each.delivery_id for each in (await setup.compare()).sent] == ["new"]
        # One page that ends at what is past, and the request to send it again.
        assert setup.call_count(listed) - before <= 3
        # A comparison on request reads all of it again.
        before = setup.call_count(listed)
        await setup.compare(since_seconds=3 * 86_400, dry_run=True)
        assert setup.call_count(listed) - before >= 11


async def test_what_is_too_old_is_left_alone(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        record.failed(hook, "ancient", age=4 * 86_400)
        record.failed(hook, "of yesterday", age=86_400)
        assert [each.delivery_id for each in (await setup.compare(since_seconds=3600)).sent] == []
        assert [each.delivery_id for each in (await setup.compare()).sent] == ["of yesterday"]


async def test_organisations_hook_is_looked_at_once_for_all_its_repositories(inbox_url: str) -> None:
    async with reconcile_setup(
        Source.GITHUB, inbox_url, Rule(name="r", repositories=("river/otter", "river/heron"))
    ) as setup:
        record, hook = recorded(setup, "orgs/river")
        record.failed(hook, "lost")
        report = await setup.compare()
        assert (report.repositories, report.troubles) == (2, ())
        assert [each.place for each in report.sent] == ["organisation river"]
        assert setup.call_count("/orgs/river/hooks/1/deliveries") == 2


async def test_groups_above_a_project_are_looked_at(inbox_url: str) -> None:
    deep = "orchard/trees/pear"
    async with reconcile_setup(Source.GITLAB, inbox_url, Rule(name="r", repositories=(deep,))) as setup:
        record, hook = recorded(setup, "groups/orchard")
        record.failed(hook, "lost")
        assert [each.place for each in (await setup.compare()).sent] == ["group orchard"]


async def test_app_whose_own_hook_calls_us_is_asked_for_all(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url, app=True) as setup:
        # The App's key is good for ten minutes of real time.
        setup.now = time.time()
        record, hook = recorded(setup, "app")
        record.failed(hook, "lost")
        report = await setup.compare()
        assert [(each.place, each.delivery_id) for each in report.sent] == [("the GitHub App", "lost")]
        assert [guid for _, guid in record.requested] == ["lost"]
        await record.settled()


async def test_app_without_a_hook_of_ours_looks_at_the_repositories(inbox_url: str) -> None:
    async with reconcile_setup(
        Source.GITHUB, inbox_url, Rule(name="r", repositories=(OTTER,)), app=True
    ) as setup:
        setup.now = time.time()
        record, hook = recorded(setup)
        record.failed(hook, "lost")
        assert [each.place for each in (await setup.compare()).sent] == [OTTER]
        requested = [each["permissions"] for each in setup.forge.tokens.values()]
        assert {"repository_hooks": "write"} in requested


async def test_gitlab_is_asked_no_faster_than_it_allows(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITLAB, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        for number in range(12):
            record.failed(hook, f"lost-{number}")
        assert len((await setup.compare()).sent) == 12
        times = [when for when, _ in record.requested]
        assert all(later - sooner > 60 for sooner, later in zip(times, times[5:], strict=False))


async def test_dry_run_asks_for_nothing_and_remembers_nothing(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        record.failed(hook, "lost")
        for _ in range(2):
            report = await setup.compare(dry_run=True)
            assert (report.dry_run, [each.times for each in report.sent]) == (True, [1])
        assert record.requested == []
        assert {request.method for request, _ in setup.forge.calls} == {"GET"}
        assert await setup.inbox.reconcile_state.rounds(setup.now) == []
        assert len((await setup.compare()).sent) == 1


# Gitea and Forgejo: by their heads.


@WITH_HEADS
async def test_missed_push_is_built_once_and_its_late_webhook_is_a_copy(
    origin: Source, inbox_url: str
) -> None:
    async with reconcile_setup(origin, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        assert (await setup.compare()).made == ()
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        (made,) = (await setup.compare()).made
        assert (made.decision, made.ref, made.commit_sha) == ("accepted", "refs/heads/main", sha(2))
        late = await setup.arrives(2)
        assert (late.decision, late.reason) == (Decision.DUPLICATE, "duplicate_content")
        assert late.request_ids == made.request_ids
        assert (await setup.compare()).made == ()
        _, request = await setup.requests()
        assert (request.commit_sha, request.before_sha, request.trusted) == (sha(2), sha(1), True)
        assert request.delivery_id is not None
        assert request.delivery_id.startswith("reconcile:push:")
        entry = next(each for each in await setup.entries() if each.reason == "reconciled")
        assert "its webhook was missed" in entry.detail


async def test_nothing_is_built_of_what_was_there_before_we_looked(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        for number in range(120):
            setup.forge.refs[OTTER, f"refs/heads/old-{number}"] = sha(1000 + number)
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        first = await setup.compare()
        assert (first.made, first.baseline) == ((), 120)
        setup.forge.refs[OTTER, "refs/heads/new"] = sha(7)
        setup.forge.refs[OTTER, "refs/heads/old-119"] = sha(8)
        second = await setup.compare()
        assert {(each.ref, each.commit_sha) for each in second.made} == {
            ("refs/heads/new", sha(7)),
            ("refs/heads/old-119", sha(8)),
        }
        assert second.baseline == 0


async def test_branches_that_are_gone_are_forgotten_and_new_ones_are_built(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        for number, name in enumerate(("main", "feature", "other"), start=1):
            await setup.arrives(number, ref=f"refs/heads/{name}")
            setup.forge.refs[OTTER, f"refs/heads/{name}"] = sha(number)

        async def known() -> set[str]:
            heads = (await setup.inbox.reconcile_state.known("acme", OTTER)).heads
            return {ref.removeprefix("refs/heads/") for ref in heads}

        reconciler = setup.reconciler()
        await reconciler.compare("acme")
        # One is missed on the pages of one comparison, the other is deleted.
        missed = setup.forge.refs.pop((OTTER, "refs/heads/other"))
        del setup.forge.refs[OTTER, "refs/heads/feature"]
        await reconciler.compare("acme")
        assert await known() == {"main", "feature", "other"}
        setup.forge.refs[OTTER, "refs/heads/other"] = missed
        await reconciler.compare("acme")
        assert await known() == {"main", "other"}
        # It comes again: with the commit that was built, and with another one.
        setup.forge.refs[OTTER, "refs/heads/feature"] = sha(2)
        assert await reconciler.compare("acme", dry_run=True)
        report = await reconciler.compare("acme")
        assert report is not None
        assert report.made == ()
        setup.forge.refs[OTTER, "refs/heads/feature"] = sha(4)
        report = await reconciler.compare("acme")
        assert report is not None
        assert [(each.ref, each.decision) for each in report.made] == [("refs/heads/feature", "accepted")]
        assert len(await setup.requests()) == 4


async def test_pull_requests_are_compared_where_one_was_ever_delivered(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url, Rule(name="r", repositories=(OTTER,))) as setup:
        setup.forge.changes[OTTER, 6] = Change(sha=sha(6))
        await setup.compare()
        setup.forge.changes[OTTER, 7] = Change(sha=sha(70), fork="dora/otter")
        setup.forge.changes[OTTER, 8] = Change(sha=sha(80), is_open=False)
        setup.forge.changes[OTTER, 6] = Change(sha=sha(61))
        made = (await setup.compare()).made
        assert {(each.ref, each.decision) for each in made} == {
            ("refs/pull/6/head", "accepted"),
            ("refs/pull/7/head", "accepted"),
        }
        of_fork = next(each for each in await setup.requests() if each.change_number == 7)
        assert (of_fork.trusted, of_fork.needs_approval) == (False, True)
        assert of_fork.head_repo_url == f"{setup.forge.url}/dora/otter.git"


async def test_pull_requests_are_ignored_where_the_webhook_never_reports_them(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        await setup.compare()
        setup.forge.changes[OTTER, 7] = Change(sha=sha(70))
        assert (await setup.compare()).made == ()
        assert setup.call_count("/pulls") == 0


async def test_what_is_not_built_by_the_rules_is_not_built_by_comparing(inbox_url: str) -> None:
    rule = Rule(name="r", repositories=(OTTER,), branches=("main",), paths=("src/**",))
    async with reconcile_setup(Source.GITEA, inbox_url, rule) as setup:
        show_heads(setup.forge, messages={sha(3): "wip [skip ci]"})
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        await setup.compare()
        # A push that a rule on paths excludes: the forge gives no paths later, and the push is still not
        # built.
        body = push_body(
            Source.GITEA,
            repo_url=f"{setup.forge.url}/{OTTER}.git",
            repo_full_name=OTTER,
            ref="refs/heads/main",
            sha=sha(2),
        ).replace(
            b'"commits":[]', b'"total_commits":1,"commits":[{"id":"%s","added":["README"]}]' % sha(2).encode()
        )
        body = body.replace(b"0" * 40, sha(1).encode())
        headers = sign(Source.GITEA, "s", event="push", body=body, delivery_id="d", now=0)
        assert (await setup.takes(headers, body)).reason == "paths_not_built"
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        assert (await setup.compare()).made == ()
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(3)
        setup.forge.refs[OTTER, "refs/heads/other"] = sha(4)
        made = (await setup.compare()).made
        assert {(each.decision, each.reason) for each in made} == {
            ("ignored", "skip_ci"),
            ("ignored", "branch_not_built"),
        }
        assert (await setup.compare()).made == ()
        assert await setup.requests() == []


async def test_webhook_under_way_is_waited_for(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        await setup.compare()
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        reconciler = setup.reconciler()

        async def sleep(seconds: float) -> None:
            await setup.sleep(seconds)
            await setup.arrives(2)

        slow = Reconciler(
            inbox=setup.inbox,
            sources=reconciler.sources,
            remotes=setup.remotes,
            metrics=setup.metrics,
            rng=reconciler.rng,
            clock=reconciler.clock,
            sleep=sleep,
        )
        report = await slow.compare("acme")
        assert report is not None
        assert (report.made, setup.slept) == ((), [SETTLE_SECONDS])
        assert [each.decision for each in await setup.entries()] == [Decision.ACCEPTED, Decision.ACCEPTED]


async def test_dry_run_of_heads_keeps_nothing(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        setup.forge.refs[OTTER, "refs/heads/old"] = sha(3)
        for _ in range(2):
            report = await setup.compare(dry_run=True)
            assert [(each.decision, each.request_ids) for each in report.made] == [("accepted", ())]
            assert report.baseline == 1
        assert len(await setup.requests()) == 1
        assert await setup.inbox.reconcile_state.rounds(setup.now) == []


async def test_two_replicas_at_once_make_each_missed_event_one_run(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup, open_inbox(inbox_url) as other:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        await setup.compare()
        for number in range(2, 12):
            setup.forge.refs[OTTER, f"refs/heads/b-{number}"] = sha(number)
        rounds = await asyncio.gather(
            *(setup.reconciler(inbox).compare("acme") for inbox in (setup.inbox, other) for _ in range(3))
        )
        compared = [each for each in rounds if each is not None]
        assert len(compared) >= 1
        assert sorted(each.commit_sha for each in await setup.requests()) == [sha(n) for n in range(1, 12)]
        assert sum(made.decision == "accepted" for each in compared for made in each.made) == 10


async def test_holder_that_was_frozen_changes_nothing_for_its_successor(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        assert await setup.inbox.reconcile_state.claim(
            "acme", "frozen", now=setup.now, until=setup.now + LEASE_SECONDS
        )
        assert await setup.reconciler().compare("acme") is None
        setup.now += LEASE_SECONDS
        assert [each.decision for each in (await setup.compare()).made] == ["accepted"]
        await setup.inbox.reconcile_state.end_round("acme", "frozen", now=setup.now, report=b'"frozen"')
        (last,) = await setup.inbox.reconcile_state.rounds(setup.now)
        assert last.report != b'"frozen"'


# Forges that misbehave.

TROUBLES: dict[str, Trouble] = {
    "401": Reply(status=401, document={"message": "Bad credentials"}),
    "403": Reply(status=403, document={"message": "Resource not accessible"}),
    "404": Reply(status=404, document={"message": "Not Found"}),
    "500": Reply(status=500, document={"message": "oops"}),
    "502": Reply(status=502),
    "garbage": Reply(document={"not": "what was asked for"}),
    "reset": Reset(),
    "half": Truncated(),
    "slow": Delayed(seconds=30),
}
SLOW_SECONDS = 2.5
"""Short enough to be waited for, long enough for the good answers that are under way on a busy machine."""


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.parametrize("origin", [Source.GITHUB, Source.GITLAB, Source.GITEA])
async def test_trouble_with_one_repository_is_reported_and_the_others_go_on(
    origin: Source, name: str, tmp_path: Path
) -> None:
    rule = Rule(name="r", repositories=("river/heron", OTTER))
    whole = SLOW_SECONDS if name == "slow" else LIMIT_WAIT_SECONDS
    async with reconcile_setup(origin, f"sqlite:///{tmp_path / 'inbox.db'}", rule, whole=whole) as setup:
        setup.forge.behave(lambda request: TROUBLES[name] if "river/heron" in request.path else None)
        if origin is Source.GITEA:
            setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        else:
            record, hook = recorded(setup)
            record.failed(hook, "lost")
        report = await setup.compare()
        assert [each.place for each in report.troubles] == ["river/heron"]
        assert report.troubles[0].detail
        assert report.baseline == (1 if origin is Source.GITEA else 0)
        assert [each.delivery_id for each in report.sent] == ([] if origin is Source.GITEA else ["lost"])
        assert TOKEN not in report.encoded().decode()


async def test_trouble_is_logged_once_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule(name="r", repositories=("river/heron",))
    async with reconcile_setup(Source.GITEA, f"sqlite:///{tmp_path / 'inbox.db'}", rule) as setup:
        warned: list[str] = []

        class Log:
            def warning(self, event: str, **_fields: object) -> None:
                warned.append(event)

            def info(self, *_words: object, **_fields: object) -> None:
                pass

        monkeypatch.setattr("solstice_forge.reconcile.rounds.log", Log())
        reconciler = setup.reconciler()
        for _ in range(3):
            assert await reconciler.compare("acme") is not None
        assert warned == ["reconcile.comparison_failed"]
        setup.forge.refs["river/heron", "refs/heads/main"] = sha(1)
        await reconciler.compare("acme")
        del setup.forge.refs["river/heron", "refs/heads/main"]
        await reconciler.compare("acme")
        assert warned == ["reconcile.comparison_failed"] * 2


@WITH_RECORD
async def test_storm_passes_and_everything_is_asked_for_once(origin: Source, inbox_url: str) -> None:
    async with reconcile_setup(origin, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        for number in range(3):
            record.failed(hook, f"lost-{number}")
        storm: dict[int, Trouble] = {
            0: Reply(status=500),
            1: Reset(),
            3: Reply(status=429, headers={"retry-after": "30"}),
            5: Reply(status=503),
        }
        setup.forge.behave(lambda _request: storm.get(len(setup.forge.calls)))
        report = await setup.compare()
        assert [guid for _, guid in record.requested] == ["lost-0", "lost-1", "lost-2"]
        assert len(report.sent) == 3
        assert any("rate limit" in each for each in setup.report_lines)


async def test_limit_that_lasts_too_long_ends_the_comparison_with_a_word(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        record.failed(hook, "lost")
        setup.forge.next(Reply(status=429, headers={"retry-after": str(int(LIMIT_WAIT_SECONDS) + 60)}))
        report = await setup.compare()
        assert "rate limit" in report.troubles[0].detail
        assert len(setup.forge.calls) == 1
        setup.now += LIMIT_WAIT_SECONDS + 61
        assert [each.delivery_id for each in (await setup.compare()).sent] == ["lost"]


@pytest.mark.parametrize("origin", [Source.GITHUB, Source.GITLAB, Source.FORGEJO])
async def test_no_limit_of_the_forge_is_broken(origin: Source, inbox_url: str) -> None:
    names = tuple(f"river/r-{number}" for number in range(20))
    async with reconcile_setup(origin, inbox_url, Rule(name="r", repositories=names)) as setup:
        # Both clocks are real here: the window is the forge's.
        async def sleep(seconds: float) -> None:
            setup.now = max(setup.now, time.time())
            await asyncio.sleep(seconds)
            setup.now = max(setup.now + seconds, time.time())

        setup.now = time.time()
        if origin is Source.FORGEJO:
            for name in names:
                setup.forge.refs[name, "refs/heads/main"] = sha(1)
        else:
            record = HookRecord(
                setup.forge, url=lambda: "http://127.0.0.1:9/webhooks/acme", secret="s", clock=time.time
            )
            for name in names:
                record.hook(("repos/" if origin is Source.GITHUB else "projects/") + name)
        setup.forge.window = Window(
            calls=30, seconds=2, prefix="ratelimit" if origin is Source.GITLAB else "x-ratelimit"
        )
        reconciler = Reconciler(
            inbox=setup.inbox,
            sources={"acme": setup.source},
            remotes=setup.remotes,
            metrics=setup.metrics,
            rng=random.Random(1),
            clock=lambda: setup.now,
            sleep=sleep,
        )
        report = await reconciler.compare("acme")
        assert report is not None
        assert (report.troubles, report.repositories) == ((), 20)
        assert setup.forge.broken == 0


async def test_forge_that_is_always_full_is_not_waited_for_without_end(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        recorded(setup)
        await setup.arrives(1)
        setup.forge.behave(lambda _request: Reply(status=429, headers={"retry-after": "100"}))
        report = await setup.compare()
        assert "rate limit" in report.troubles[0].detail
        assert sum(setup.slept) <= LIMIT_WAIT_SECONDS
        assert len(setup.forge.calls) <= LIMIT_WAIT_SECONDS / 100 + 1


async def test_by_the_clock_each_source_is_compared_once_per_interval_by_any_process(
    inbox_url: str,
) -> None:
    interval = 900.0
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(1)
        began, enough = setup.now, asyncio.Event()
        sleepers: list[tuple[float, asyncio.Event]] = []

        async def sleep(seconds: float) -> None:
            """Time passes while both replicas sleep, until the first of them wakes."""
            sleepers.append((setup.now + seconds, asyncio.Event()))
            waking = sleepers[-1][1]
            if len(sleepers) == 2:
                first = min(sleepers, key=lambda each: each[0])
                sleepers.remove(first)
                setup.now = first[0]
                (enough if setup.now > began + 10 * interval else first[1]).set()
            await waking.wait()

        reconciler = setup.reconciler()
        replicas = [
            Reconciler(
                inbox=setup.inbox,
                sources=reconciler.sources,
                remotes=setup.remotes,
                metrics=setup.metrics,
                rng=random.Random(seed),
                clock=reconciler.clock,
                sleep=sleep,
            )
            for seed in (2, 3)
        ]
        running = [asyncio.create_task(replica.run(interval)) for replica in replicas]
        async with asyncio.timeout(60):
            await enough.wait()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        # Twenty turns in all, and each interval's work was done once.
        assert 8 <= setup.call_count("/branches") <= 13


async def test_inbox_that_is_away_is_tried_again_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reconcile_setup(Source.FORGEJO, f"sqlite:///{tmp_path / 'inbox.db'}") as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        troubles: list[Exception] = [StoreUnavailable("the inbox", "for the test"), LookupError("a mistake")]
        claim = setup.inbox.reconcile_state.claim

        async def fails_once(*given: Any, **named: Any) -> bool:
            if troubles:
                raise troubles.pop(0)
            return await claim(*given, **named)

        monkeypatch.setattr(setup.inbox.reconcile_state, "claim", fails_once)
        running = asyncio.create_task(setup.reconciler().run(900.0))
        async with asyncio.timeout(60):
            while len(await setup.requests()) < 2:  # noqa: ASYNC110  the inbox sends no notification of this
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        assert [each.commit_sha for each in await setup.requests()] == [sha(1), sha(2)]


async def test_pull_requests_that_are_switched_off_are_not_asked_for(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITEA, inbox_url, Rule(name="r", repositories=(OTTER,))) as setup:
        without = {
            "full_name": OTTER,
            "clone_url": f"{setup.forge.url}/{OTTER}.git",
            "has_pull_requests": False,
        }
        setup.forge.on("GET", f"/repos/{OTTER}", lambda _request: Reply(document=without))
        assert (await setup.compare()).troubles == ()
        assert setup.call_count("/pulls") == 0


async def test_no_right_to_send_again_is_reported_and_not_tried_fifty_times(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        record, hook = recorded(setup)
        await setup.arrives(1)
        for number in range(5):
            record.failed(hook, f"lost-{number}")
        setup.forge.behave(
            lambda request: (
                Reply(status=403, document={"message": "no"}) if request.method == "POST" else None
            )
        )
        report = await setup.compare()
        assert (len(report.troubles), report.sent) == (1, ())
        assert "lost-0" in report.troubles[0].detail
        setup.forge.behave(lambda _request: None)
        assert len((await setup.compare()).sent) == 5
        assert record.requested
        await record.settled()


async def test_repository_without_a_hook_of_ours_is_reported(inbox_url: str) -> None:
    async with reconcile_setup(Source.GITHUB, inbox_url) as setup:
        HookRecord(setup.forge, url=str, secret="s")
        await setup.arrives(1)
        (trouble,) = (await setup.compare()).troubles
        assert (trouble.place, "webhooks/acme" in trouble.detail) == (OTTER, True)


async def test_counts_are_metrics(inbox_url: str) -> None:
    async with reconcile_setup(Source.FORGEJO, inbox_url) as setup:
        await setup.arrives(1)
        setup.forge.refs[OTTER, "refs/heads/main"] = sha(2)
        setup.forge.refs[OTTER, "refs/heads/old"] = sha(3)
        await setup.compare()
        shown = setup.metrics.render(0, BrokerHealth(connected=True)).decode()
        for outcome in ("accepted", "baseline"):
            assert f'solstice_forge_reconciled_total{{outcome="{outcome}",source="acme"}} 1.0' in shown
