"""Every inbox keeps the state between two comparisons with a forge."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.protocol import Decision
from solstice_forge.inbox.reconcile_state import ReconcileState, RefHead, ResendRecord
from solstice_forge.inbox.reconcile_tables import READ_AT_ONCE, SETTLED_SECONDS
from tests.inboxes import NOON, delivery

SHA, OTHER = "0a" * 20, "0b" * 20


@pytest.fixture
async def inbox(empty_url: str) -> AsyncIterator[InboxStore]:
    async with open_inbox(empty_url) as opened:
        yield opened


@pytest.fixture
def tables(inbox: InboxStore) -> ReconcileState:
    return inbox.reconcile_state


def request(sha: str, *, ref: str = "refs/heads/main", event: str = "push") -> bytes:
    return (
        f'{{"commit_sha":"{sha}","event":"{event}","ref":"{ref}","schema_version":"jobrequest.v1"}}'.encode()
    )


def nothing(_source: str, _event: str, _body: bytes) -> RefHead | None:
    return None


async def test_source_is_one_holders_until_the_end_or_its_time_is_up(tables: ReconcileState) -> None:
    assert await tables.claim("acme", "a", now=NOON, until=NOON + 60)
    assert not await tables.claim("acme", "b", now=NOON + 59, until=NOON + 119)
    assert await tables.claim("other", "b", now=NOON, until=NOON + 60)
    assert await tables.claim("acme", "a", now=NOON + 30, until=NOON + 90)
    assert not await tables.claim("acme", "b", now=NOON + 89, until=NOON + 149)
    assert await tables.claim("acme", "b", now=NOON + 90, until=NOON + 150)
    assert not await tables.claim("acme", "a", now=NOON + 91, until=NOON + 151)
    await tables.end_round("acme", "a", now=NOON + 92, report=b'"late"')
    assert not await tables.claim("acme", "c", now=NOON + 93, until=NOON + 153)
    await tables.end_round("acme", "b", now=NOON + 94, report=b'"done"')
    (acme, other) = await tables.rounds(NOON + 50)
    assert (acme.source_name, acme.is_held, acme.ended_at, acme.report) == (
        "acme",
        False,
        NOON + 94,
        b'"done"',
    )
    assert (other.is_held, other.ended_at, other.report) == (True, None, None)


async def test_source_that_was_compared_lately_is_left_alone(tables: ReconcileState) -> None:
    assert await tables.claim("acme", "a", now=NOON, until=NOON + 60, ended_before=NOON - 900)
    await tables.end_round("acme", "a", now=NOON + 1, report=b"1")
    assert not await tables.claim("acme", "b", now=NOON + 2, until=NOON + 62, ended_before=NOON + 1)
    assert await tables.claim("acme", "b", now=NOON + 2, until=NOON + 62, ended_before=NOON + 2)


async def test_of_many_who_want_a_source_one_gets_it(tables: ReconcileState) -> None:
    claims = [tables.claim("acme", f"holder {n}", now=NOON, until=NOON + 60) for n in range(20)]
    assert sorted(await asyncio.gather(*claims)) == [False] * 19 + [True]


async def test_log_reports_repositories_and_their_heads(inbox: InboxStore, tables: ReconcileState) -> None:
    later = NOON + SETTLED_SECONDS
    await inbox.keep(replace(delivery("a"), request=request(SHA)))
    await inbox.keep(replace(delivery("b", received_at=NOON + 1), request=request(OTHER)))
    pull = request(SHA, ref="refs/pull/7/head", event="change_request")
    await inbox.keep(replace(delivery("c", repository="river/otter"), request=pull))
    await inbox.keep(delivery("d", asks=False, repository="river/heron"))
    await inbox.keep(delivery("e", asks=False, repository=None))
    await inbox.keep(replace(delivery("f", source="gitea"), request=request(SHA)))
    for _ in range(2):
        await tables.learn(later, [], nothing)
        assert await tables.repositories("forgejo") == ["harbour/lighthouse", "river/heron", "river/otter"]
        known = await tables.known("forgejo", "harbour/lighthouse")
        assert known.heads == {"refs/heads/main": OTHER}
        assert known.kinds == {"", "push"}
        assert known.compared == frozenset()
        assert (await tables.known("forgejo", "river/otter")).kinds == {"", "change_request"}
        assert (await tables.known("forgejo", "river/heron")).kinds == {""}
        assert (await tables.known("gitea", "harbour/lighthouse")).heads == {"refs/heads/main": SHA}


async def test_what_is_young_is_known_at_once_and_read_again(
    inbox: InboxStore, tables: ReconcileState
) -> None:
    await inbox.keep(replace(delivery("a"), request=request(SHA)))
    await tables.learn(NOON + 1, [], nothing)
    assert (await tables.known("forgejo", "harbour/lighthouse")).heads == {"refs/heads/main": SHA}
    # As if it had been committed late, with a lower number than what was read before.
    await inbox.keep(replace(delivery("b", received_at=NOON + 1), request=request(OTHER)))
    await tables.learn(NOON + SETTLED_SECONDS + 1, [], nothing)
    assert (await tables.known("forgejo", "harbour/lighthouse")).heads == {"refs/heads/main": OTHER}


async def test_what_a_rule_left_out_is_read_from_its_body(inbox: InboxStore, tables: ReconcileState) -> None:
    left_out = replace(delivery("a", asks=False, reason="paths_not_built"), body=b"the body")
    await inbox.keep(left_out)
    await inbox.keep(replace(delivery("b", asks=False, reason="ping"), body=b"not asked for"))
    seen: list[tuple[str, str, bytes]] = []

    def read(source: str, event: str, body: bytes) -> RefHead | None:
        seen.append((source, event, body))
        return RefHead(kind="push", ref="refs/heads/main", commit_sha=SHA)

    await tables.learn(NOON + SETTLED_SECONDS, {"paths_not_built", "skip_ci"}, read)
    assert seen == [("forgejo", "push", b"the body")]
    assert (await tables.known("forgejo", "harbour/lighthouse")).heads == {"refs/heads/main": SHA}


async def test_long_log_is_read_to_its_end(inbox: InboxStore, tables: ReconcileState) -> None:
    names = [f"d-{number}" for number in range(READ_AT_ONCE + 10)]
    await asyncio.gather(*(inbox.keep(delivery(name, repository=f"river/{name}")) for name in names))
    await tables.learn(NOON + SETTLED_SECONDS, [], nothing)
    assert len(await tables.repositories("forgejo")) == len(names)


async def test_older_news_of_a_head_change_nothing(tables: ReconcileState) -> None:
    await tables.remember("acme", "river/otter", "push", {"refs/heads/main": SHA, "refs/heads/b": SHA}, NOON)
    await tables.remember("acme", "river/otter", "push", {"refs/heads/main": OTHER}, NOON - 1)
    known = await tables.known("acme", "river/otter")
    assert known.heads == {"refs/heads/main": SHA, "refs/heads/b": SHA}
    assert known.compared == {"push"}


async def test_heads_that_nothing_compares_are_not_stored(inbox: InboxStore, tables: ReconcileState) -> None:
    await inbox.keep(replace(delivery("a", source="github"), request=request(SHA)))
    await inbox.keep(replace(delivery("b"), request=request(SHA, ref="refs/tags/v1")))
    await inbox.keep(replace(delivery("c"), request=request(SHA)))
    # As an earlier version left it.
    await tables.remember("github", "river/otter", "push", {"refs/heads/old": SHA}, NOON)
    await tables.learn(NOON + SETTLED_SECONDS, [], nothing, headless=["github"])
    for repository in ("harbour/lighthouse", "river/otter"):
        assert not (await tables.known("github", repository)).heads
    assert "push" in (await tables.known("github", "harbour/lighthouse")).kinds
    assert (await tables.known("forgejo", "harbour/lighthouse")).heads == {"refs/heads/main": SHA}


async def test_forgotten_heads_are_those_without_news(tables: ReconcileState) -> None:
    heads = {"refs/heads/main": SHA, "refs/heads/gone": SHA, "refs/heads/again": SHA}
    for repository in ("river/otter", "river/heron"):
        await tables.remember("acme", repository, "push", heads, NOON)
    await tables.remember("acme", "river/otter", "push", {"refs/heads/again": OTHER}, NOON + 10)
    await tables.forget_heads("acme", "river/otter", ["refs/heads/gone", "refs/heads/again"], NOON + 10)
    known = await tables.known("acme", "river/otter")
    assert known.heads == {"refs/heads/main": SHA, "refs/heads/again": OTHER}
    assert (await tables.known("acme", "river/heron")).heads == heads


async def test_what_was_asked_for_again_is_counted_and_forgotten(tables: ReconcileState) -> None:
    await tables.note_resend("acme", "guid", NOON)
    await tables.note_resend("acme", "guid", NOON + 5)
    assert await tables.resends("acme", ["guid", "x"]) == {
        "guid": ResendRecord(times=2, requested_at=NOON + 5)
    }
    assert await tables.resends("other", ["guid"]) == {}
    await tables.learn(NOON + 40 * 86_400, [], nothing)
    assert await tables.resends("acme", ["guid"]) == {}


async def test_copies_arrived_as_well(inbox: InboxStore, tables: ReconcileState) -> None:
    await inbox.keep(delivery("a"))
    await inbox.keep(delivery("b", key="key of a"))
    assert await tables.arrived("forgejo", ["a", "b", "c"]) == {"a", "b"}
    assert await tables.arrived("gitea", ["a", "b"]) == frozenset()
    assert await tables.arrived("forgejo", []) == frozenset()


async def test_mark_of_a_hook_only_rises(tables: ReconcileState) -> None:
    assert await tables.cursor("acme", "/repos/r/o/hooks/1") is None
    await tables.store_cursor("acme", "/repos/r/o/hooks/1", 5.0)
    await tables.store_cursor("acme", "/repos/r/o/hooks/1", 4.0)
    assert await tables.cursor("acme", "/repos/r/o/hooks/1") == 5.0


async def test_what_has_several_contents_is_recognised_by_each(
    inbox: InboxStore, tables: ReconcileState
) -> None:
    made = replace(delivery("reconcile:x", key="opened"), other_content_keys=("synchronized", "reopened"))
    first = await inbox.keep(made)
    assert first.decision is Decision.ACCEPTED
    for number, key in enumerate(("synchronized", "reopened", "opened")):
        late = await inbox.keep(delivery(f"late-{number}", key=key))
        assert (late.decision, late.reason, late.request_ids) == (
            Decision.DUPLICATE,
            "duplicate_content",
            first.request_ids,
        )
    assert (await inbox.keep(made)).reason == "duplicate_delivery"
    assert await inbox.backlog() == 1
    assert await tables.delivered(["synchronized", "opened", "closed"]) == {"synchronized", "opened"}


async def test_what_came_under_one_of_several_contents_is_not_made_again(inbox: InboxStore) -> None:
    first = await inbox.keep(delivery("real", key="synchronized"))
    made = replace(delivery("reconcile:x", key="opened"), other_content_keys=("synchronized",))
    answer = await inbox.keep(made)
    assert (answer.decision, answer.request_ids) == (Decision.DUPLICATE, first.request_ids)
    assert (await inbox.keep(delivery("another", key="opened"))).decision is Decision.ACCEPTED
    assert await inbox.backlog() == 2


async def test_late_webhooks_and_what_was_made_of_the_same_are_one_request(empty_url: str) -> None:
    made = [
        replace(delivery("reconcile:x", key="opened"), other_content_keys=("synchronized",)) for _ in range(4)
    ]
    real = [delivery(f"real-{number}", key="synchronized") for number in range(8)]
    async with open_inbox(empty_url) as here, open_inbox(empty_url) as there:
        stored = await asyncio.gather(
            *(where.keep(each) for each in (*made, *real) for where in (here, there)),
        )
        assert [each.decision for each in stored].count(Decision.ACCEPTED) == 1
        assert len({each.request_ids for each in stored}) == 1
        assert await here.backlog() == 1


async def test_forgotten_delivery_takes_its_other_contents_along(inbox: InboxStore) -> None:
    await inbox.keep(replace(delivery("reconcile:x", key="opened"), other_content_keys=("synchronized",)))
    (pending,) = await inbox.pending(1)
    await inbox.published([pending.row_id])
    await inbox.forget(NOON + 1, 10)
    assert (await inbox.keep(delivery("real", key="synchronized"))).decision is Decision.ACCEPTED
