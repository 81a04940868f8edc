"""What every inbox promises; written against the protocol, run on every implementation."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.log import DeliveryFilter
from solstice_forge.inbox.protocol import Decision, Inbox, KeepResult, NewDelivery
from tests.inboxes import NOON, REQUEST, delivery, keep_in_one_batch

OpenInbox = Callable[[], AbstractAsyncContextManager[InboxStore]]


@pytest.fixture
def another(empty_url: str) -> OpenInbox:
    """Open the test's inbox once more, as another process would."""
    return lambda: open_inbox(empty_url)


@pytest.fixture
async def inbox(another: OpenInbox) -> AsyncIterator[InboxStore]:
    async with another() as opened:
        yield opened


async def test_kept_request_is_pending_also_after_the_end(another: OpenInbox) -> None:
    async with another() as inbox:
        stored = await inbox.keep(delivery("d-1"))
        assert (stored.decision, stored.reason, stored.request_ids) == (
            Decision.ACCEPTED,
            "push",
            ("request of forgejo d-1",),
        )
    async with another() as inbox:
        (pending,) = await inbox.pending(10)
        assert (pending.request_id, pending.request, pending.attempts) == (
            "request of forgejo d-1",
            REQUEST,
            0,
        )


async def test_pending_is_in_the_order_kept(inbox: InboxStore) -> None:
    for number in range(30):
        await inbox.keep(delivery(f"d-{number}"))
    first = await inbox.pending(20)
    assert [one.request_id for one in first] == [f"request of forgejo d-{number}" for number in range(20)]
    assert await inbox.backlog() == 30


async def test_same_delivery_is_a_duplicate_with_the_first_ones_request(inbox: InboxStore) -> None:
    first = await inbox.keep(delivery("d-1"))
    again = await inbox.keep(delivery("d-1", key="another"))
    assert (again.decision, again.reason) == (Decision.DUPLICATE, "duplicate_delivery")
    assert again.request_ids == first.request_ids
    assert await inbox.backlog() == 1


async def test_same_content_by_another_hook_is_a_duplicate(inbox: InboxStore) -> None:
    first = await inbox.keep(delivery("d-1", key="k"))
    second = await inbox.keep(delivery("d-2", key="k", source="forgejo-org"))
    assert (second.decision, second.reason) == (Decision.DUPLICATE, "duplicate_content")
    assert second.request_ids == first.request_ids
    assert await inbox.backlog() == 1


async def test_same_delivery_id_of_another_source_is_another_delivery(inbox: InboxStore) -> None:
    await inbox.keep(delivery("d-1"))
    other = await inbox.keep(delivery("d-1", source="gitea", key="k"))
    assert other.decision is Decision.ACCEPTED


async def test_fifty_copies_at_once_are_one(inbox: InboxStore) -> None:
    stored = await asyncio.gather(*(inbox.keep(delivery("d-1")) for _ in range(50)))
    decisions = [one.decision for one in stored]
    assert decisions.count(Decision.ACCEPTED) == 1
    assert decisions.count(Decision.DUPLICATE) == 49


async def test_fifty_copies_that_came_together_are_one(inbox: InboxStore) -> None:
    stored = await keep_in_one_batch(inbox, *(delivery("d-1") for _ in range(50)))
    assert [one.decision for one in stored] == [Decision.ACCEPTED, *[Decision.DUPLICATE] * 49]


async def test_what_cannot_be_kept_of_those_that_came_together_is_reported_alone(inbox: InboxStore) -> None:
    unwritable = replace(delivery("odd"), headers={"x-forgejo-event": "\ud800"})
    first, error, last = await inbox.keep_all([delivery("a"), unwritable, delivery("b")])
    assert isinstance(error, Exception)
    assert isinstance(first, KeepResult)
    assert isinstance(last, KeepResult)
    assert [one.request_id for one in await inbox.pending(10)] == [
        "request of forgejo a",
        "request of forgejo b",
    ]


async def test_nothing_that_came_is_nothing_kept(inbox: InboxStore) -> None:
    assert list(await inbox.keep_all([])) == []
    assert await inbox.backlog() == 0


async def test_ignored_delivery_is_kept_and_not_pending(inbox: InboxStore) -> None:
    stored = await inbox.keep(delivery("d-1", asks=False))
    assert (stored.decision, stored.reason, stored.request_ids) == (Decision.IGNORED, "ping", ())
    again = await inbox.keep(delivery("d-1", asks=False))
    assert (again.decision, again.request_ids) == (Decision.DUPLICATE, ())
    assert await inbox.backlog() == 0


async def test_published_is_pending_no_more_and_the_rest_counts_its_attempts(inbox: InboxStore) -> None:
    for name in ("a", "b", "c"):
        await inbox.keep(delivery(name))
    a, b, c = await inbox.pending(10)
    await inbox.published([b.row_id])
    await inbox.not_published([a.row_id, c.row_id], "unroutable")
    await inbox.not_published([c.row_id], "unroutable")
    assert [(one.request_id[-1], one.attempts) for one in await inbox.pending(10)] == [("a", 1), ("c", 2)]
    assert (await inbox.keep(delivery("b"))).decision is Decision.DUPLICATE


async def test_keeping_wakes_every_process_that_listens(another: OpenInbox) -> None:
    async with (
        another() as here,
        another() as there,
        here.changes() as notified_here,
        there.changes() as notified_there,
        asyncio.timeout(10),
    ):
        await here.keep(delivery("d-1"))
        await notified_here.wait()
        await notified_there.wait()
        assert await there.backlog() == 1


async def test_one_relays_at_a_time(another: OpenInbox) -> None:
    order: list[str] = []

    async def relay(inbox: Inbox, name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with inbox.relaying():
            order.append(f"{name} in")
            entered.set()
            await leave.wait()
            order.append(f"{name} out")

    entered = {name: asyncio.Event() for name in "ab"}
    leave = asyncio.Event()
    async with another() as a, another() as b, asyncio.TaskGroup() as tasks:
        tasks.create_task(relay(a, "a", entered["a"], leave))
        await entered["a"].wait()
        tasks.create_task(relay(b, "b", entered["b"], leave))
        await b.keep(delivery("d-1"))
        assert not entered["b"].is_set()
        leave.set()
    assert order == ["a in", "a out", "b in", "b out"]


async def test_new_deliveries_between_repeated_ones_are_kept_and_nothing_else_is_touched(
    inbox: InboxStore,
) -> None:
    await keep_in_one_batch(inbox, *(delivery(f"old-{number}") for number in range(3)))
    same_content = delivery("other", key="key of old-0")
    group = [delivery(name) for name in ("new-0", "old-1", "new-1", "old-2", "new-1", "new-2")]
    answers = await keep_in_one_batch(inbox, *group, same_content)
    accepted = {"new-0": 0, "new-1": 2, "new-2": 5}
    expected = [
        Decision.ACCEPTED if number in accepted.values() else Decision.DUPLICATE for number in range(7)
    ]
    assert [answer.decision for answer in answers] == expected
    stored = [one.request_id for one in await inbox.pending(100)]
    assert stored == [f"request of forgejo {name}" for name in ("old-0", "old-1", "old-2", *accepted)]


async def test_a_copy_refers_to_the_number_of_its_original_not_to_its_place_in_a_group(
    inbox: InboxStore,
) -> None:
    group = [delivery("a"), delivery("a"), delivery("b", key="key of a"), delivery("c"), delivery("c")]
    await keep_in_one_batch(inbox, *group)
    listed = (await inbox.entries(DeliveryFilter(), limit=10)).entries
    first = {one.delivery_id: one.row_id for one in listed if one.decision is Decision.ACCEPTED}
    copies = {
        (one.delivery_id, one.reason): one.repeats for one in listed if one.decision is Decision.DUPLICATE
    }
    assert copies == {
        ("a", "duplicate_delivery"): first["a"],
        ("b", "duplicate_content"): first["a"],
        ("c", "duplicate_delivery"): first["c"],
    }


async def test_the_same_delivery_at_two_processes_is_stored_once(another: OpenInbox) -> None:
    async with another() as here, another() as there, asyncio.timeout(60):
        for turn in range(20):
            reported = [delivery(f"d-{turn}-{number}") for number in range(10)]
            both = await asyncio.gather(
                keep_in_one_batch(here, *reported), keep_in_one_batch(there, *reversed(reported))
            )
            decisions = Counter(one.decision for stored in both for one in stored)
            assert decisions == {Decision.ACCEPTED: 10, Decision.DUPLICATE: 10}
        pending = [one.request_id for one in await here.pending(1000)]
    assert len(pending) == len(set(pending)) == 200


async def test_two_hooks_at_two_processes_are_one_request(another: OpenInbox) -> None:
    async with another() as here, another() as there, asyncio.timeout(60):
        for turn in range(20):
            stored = await asyncio.gather(
                *(here.keep(delivery(f"repo-{turn}-{n}", key=f"{turn} {n}")) for n in range(5)),
                *(there.keep(delivery(f"org-{turn}-{n}", key=f"{turn} {n}")) for n in reversed(range(5))),
            )
            assert Counter(one.decision for one in stored) == {Decision.ACCEPTED: 5, Decision.DUPLICATE: 5}
        assert await here.backlog() == 100


# -- lookups -----------------------------------------------------------------------------------


def lacking(name: str, *, key: str | None = None) -> NewDelivery:
    return replace(delivery(name, key=key), request=None, lookup=b'{"event":1}')


async def test_a_delivery_that_lacks_something_is_pending_once_the_forge_answered(inbox: InboxStore) -> None:
    stored = await inbox.keep(lacking("d-1"))
    assert inbox.lookup_added.is_set()
    assert await inbox.pending(10) == []
    assert await inbox.next_lookup_at() == NOON
    (lookup,) = await inbox.take_lookups(NOON, until=NOON + 60, limit=10)
    assert (lookup.source_name, lookup.delivery_id, lookup.content_key, lookup.event, lookup.attempts) == (
        "forgejo",
        "d-1",
        "key of d-1",
        b'{"event":1}',
        1,
    )
    await inbox.lookup_answered(lookup.row_id, b'{"a":2}')
    await inbox.lookup_answered(lookup.row_id, b'{"a":3}')
    (pending,) = await inbox.pending(10)
    assert ((pending.request_id,), pending.request) == (stored.request_ids, b'{"a":2}')
    assert await inbox.next_lookup_at() is None
    assert (await inbox.keep(lacking("d-2", key="key of d-1"))).request_ids == stored.request_ids


async def test_what_is_looked_up_is_taken_by_one_at_a_time(another: OpenInbox) -> None:
    async with another() as here, another() as there:
        for number in range(10):
            await here.keep(lacking(f"d-{number}"))
        claimed_lookups = await asyncio.gather(
            here.take_lookups(NOON, until=NOON + 60, limit=6),
            there.take_lookups(NOON, until=NOON + 60, limit=6),
        )
        row_ids = [one.row_id for group in claimed_lookups for one in group]
        rest = await here.take_lookups(NOON, until=NOON + 60, limit=10)
        row_ids += [one.row_id for one in rest]
        assert len(row_ids) == len(set(row_ids)) == 10
        assert len(await there.take_lookups(NOON + 60, until=NOON + 120, limit=20)) == 10


async def test_a_lookup_without_an_answer_is_repeated_and_declined_in_the_end(inbox: InboxStore) -> None:
    await inbox.keep(lacking("d-1"))
    (first,) = await inbox.take_lookups(NOON, until=NOON + 60, limit=1)
    await inbox.lookup_postponed(first.row_id, NOON + 5, "503")
    (entry,) = (await inbox.entries(DeliveryFilter(), limit=1)).entries
    assert (entry.decision, entry.published, entry.last_failure) == (Decision.ACCEPTED, None, "503")
    (second,) = await inbox.take_lookups(NOON + 5, until=NOON + 60, limit=1)
    assert second.attempts == 2
    await inbox.declined(second.row_id, "not_allowed", "mira may not")
    (entry,) = (await inbox.entries(DeliveryFilter(), limit=1)).entries
    assert (entry.decision, entry.reason, entry.detail, entry.request_ids) == (
        Decision.IGNORED,
        "not_allowed",
        "mira may not",
        (),
    )
    assert await inbox.next_lookup_at() is None
    assert await inbox.pending(10) == []


# -- the decision log ------------------------------------------------------------------------------------------------


async def test_every_delivery_is_listed_with_its_verdict_newest_first(inbox: InboxStore) -> None:
    await inbox.keep(delivery("first"))
    await inbox.keep(delivery("ping", asks=False, repository=None))
    await inbox.keep(delivery("first"))
    copy, ping, first = (await inbox.entries(DeliveryFilter(), limit=10)).entries
    assert (first.decision, first.reason, first.request_ids, first.repeats) == (
        Decision.ACCEPTED,
        "push",
        ("request of forgejo first",),
        None,
    )
    assert (first.source_name, first.event_name, first.repo_full_name, first.received_at) == (
        "forgejo",
        "push",
        "harbour/lighthouse",
        NOON,
    )
    assert (ping.decision, ping.reason, ping.request_ids, ping.repo_full_name, ping.published) == (
        Decision.IGNORED,
        "ping",
        (),
        None,
        None,
    )
    assert (copy.decision, copy.reason, copy.request_ids, copy.repeats, copy.published) == (
        Decision.DUPLICATE,
        "duplicate_delivery",
        first.request_ids,
        first.row_id,
        None,
    )
    assert first.row_id < ping.row_id < copy.row_id


async def test_log_says_what_became_of_the_request(inbox: InboxStore) -> None:
    for name in ("sent", "stuck", "new"):
        await inbox.keep(delivery(name))
    sent, stuck, _ = await inbox.pending(10)
    await inbox.published([sent.row_id])
    await inbox.not_published([stuck.row_id], "unroutable")
    new, not_sent, done = (await inbox.entries(DeliveryFilter(), limit=10)).entries
    assert (done.published, done.attempts, done.last_failure) == (True, 1, None)
    assert (not_sent.published, not_sent.attempts, not_sent.last_failure) == (False, 1, "unroutable")
    assert (new.published, new.attempts, new.last_failure) == (False, 0, None)


@pytest.mark.parametrize(
    ("sought", "names"),
    [
        pytest.param(DeliveryFilter(source="gitea"), ["other"], id="source"),
        pytest.param(DeliveryFilter(repository="reef/club"), ["copy", "late"], id="repository"),
        pytest.param(DeliveryFilter(decision=Decision.ACCEPTED), ["late", "other", "early"], id="accepted"),
        pytest.param(DeliveryFilter(decision=Decision.IGNORED), ["ping"], id="ignored"),
        pytest.param(DeliveryFilter(decision=Decision.DUPLICATE), ["copy"], id="duplicate"),
        pytest.param(DeliveryFilter(reason="duplicate_content"), ["copy"], id="reason"),
        pytest.param(DeliveryFilter(since=NOON + 10), ["copy", "late"], id="since"),
        pytest.param(DeliveryFilter(source="gitea", since=NOON + 10), [], id="nothing-fits-both"),
        pytest.param(DeliveryFilter(repository="reef/%"), [], id="no-pattern"),
    ],
)
async def test_log_is_filtered(inbox: InboxStore, sought: DeliveryFilter, names: list[str]) -> None:
    await inbox.keep(delivery("early"))
    await inbox.keep(delivery("ping", asks=False))
    await inbox.keep(delivery("other", source="gitea"))
    await inbox.keep(delivery("late", repository="reef/club", received_at=NOON + 10))
    await inbox.keep(delivery("copy", repository="reef/club", received_at=NOON + 20, key="key of late"))
    listed = await inbox.entries(sought, limit=10)
    assert [one.delivery_id for one in listed.entries] == names
    assert listed.next is None


async def test_pages_of_the_log_join_without_gap_or_overlap(
    inbox: InboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_forge.inbox.paging.RANGE", 3)
    monkeypatch.setattr("solstice_forge.inbox.paging.RANGES", 2)
    for number in range(25):
        await inbox.keep(delivery(f"d-{number}", repository="rare/one" if number % 9 == 0 else "many/more"))
    for repository, numbers in ((None, range(25)), ("rare/one", range(0, 25, 9)), ("none/such", range(0))):
        names: list[str] = []
        before: int | None = None
        for _ in range(40):
            page = await inbox.entries(DeliveryFilter(repository=repository), limit=4, before=before)
            assert len(page.entries) <= 4
            names += [one.delivery_id for one in page.entries]
            before = page.next
            if before is None:
                break
        assert before is None
        assert names == [f"d-{number}" for number in reversed(numbers)]


async def test_search_by_time_ends_at_what_is_too_old(
    inbox: InboxStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solstice_forge.inbox.paging.RANGE", 2)
    for number in range(10):
        await inbox.keep(delivery(f"d-{number}", received_at=NOON + 7200 * number))
    listed = await inbox.entries(DeliveryFilter(since=NOON + 7200 * 7), limit=100)
    assert [one.delivery_id for one in listed.entries] == ["d-9", "d-8", "d-7"]
    assert listed.next is None


async def test_one_delivery_is_shown_with_all_that_is_kept_of_it(inbox: InboxStore) -> None:
    body = b'{"commits": [' + b", ".join(b'{"id": "%040x"}' % number for number in range(200)) + b"]}"
    await inbox.keep(delivery("d-1", body=body))
    await inbox.keep(delivery("d-1", body=body))
    first, second = await inbox.numbers_of("d-1")
    shown, copy = await inbox.recorded(first), await inbox.recorded(second)
    assert shown is not None
    assert copy is not None
    assert (shown.body, shown.headers, shown.request) == (body, {"x-forgejo-event": "push"}, REQUEST)
    assert (copy.body, dict(copy.headers), copy.request) == (b"", {}, None)
    assert copy.entry.repeats == shown.entry.row_id
    assert await inbox.copies_of(first, limit=5) == [copy.entry]
    assert await inbox.recorded(second + 1) is None
    assert await inbox.numbers_of("nothing") == []


async def test_replays_are_found_from_what_they_replay(inbox: InboxStore) -> None:
    await inbox.keep(delivery("d-1"))
    (row_id,) = await inbox.numbers_of("d-1")
    for name in (f"replay:{row_id}:b", f"replay:{row_id}:a", f"replay:{row_id}0:c"):
        await inbox.keep(delivery(name))
    replays = await inbox.replays_of(row_id, limit=10)
    assert [one.delivery_id for one in replays] == [f"replay:{row_id}:b", f"replay:{row_id}:a"]
    assert await inbox.replays_of(4711, limit=10) == []


# -- forgetting ------------------------------------------------------------------------------------------------------


async def filled(inbox: InboxStore) -> None:
    """Ten deliveries an hour apart, three of them unpublished; a ping and a copy."""
    for number in range(10):
        await inbox.keep(delivery(f"d-{number}", received_at=NOON + 3600 * number, body=b'{"a":"b"}'))
    await inbox.published([one.row_id for one in await inbox.pending(7)])
    await inbox.keep(delivery("ping", asks=False, received_at=NOON + 36000))
    await inbox.keep(delivery("d-0", received_at=NOON + 36000))


async def test_old_bodies_go_and_what_was_decided_stays(inbox: InboxStore) -> None:
    await filled(inbox)
    steps = [await inbox.strip(NOON + 3600 * 5, 2) for _ in range(3)]
    assert [(one.rows, one.more) for one in steps] == [(2, True), (2, True), (1, False)]
    assert (await inbox.strip(NOON + 3600 * 5, 2)).rows == 0
    listed = (await inbox.entries(DeliveryFilter(decision=Decision.ACCEPTED), limit=20)).entries
    shown = [await inbox.recorded(one.row_id) for one in reversed(listed)]
    assert [bool(one and one.body) for one in shown] == [False] * 5 + [True] * 5
    assert [bool(one and one.headers) for one in shown] == [False] * 5 + [True] * 5
    assert all(one and one.request == REQUEST for one in shown)
    assert (await inbox.keep(delivery("d-1"))).decision is Decision.DUPLICATE
    assert (await inbox.strip(NOON + 36000 * 9, 100)).rows == 6


async def test_old_deliveries_are_forgotten_except_for_those_not_with_the_broker(inbox: InboxStore) -> None:
    await filled(inbox)
    everything = NOON + 36000 * 9
    assert await inbox.forgettable(NOON + 3600 * 5) == 5
    assert (await inbox.forget(NOON + 3600 * 5, 100)).rows == 5
    assert (await inbox.keep(delivery("d-4", received_at=NOON))).decision is Decision.ACCEPTED
    assert (await inbox.keep(delivery("d-5"))).decision is Decision.DUPLICATE
    rows = 0
    for _ in range(50):
        step = await inbox.forget(everything, 3)
        rows += step.rows
        if not step.more:
            break
    assert not step.more
    # The last three of the first ten, and the one that was stored again.
    assert await inbox.backlog() == 4
    left = (await inbox.entries(DeliveryFilter(), limit=20)).entries
    assert sorted(one.delivery_id for one in left) == ["d-4", "d-7", "d-8", "d-9"]
    assert await inbox.forgettable(everything) == 0


async def test_what_waits_for_the_forge_is_not_forgotten(inbox: InboxStore) -> None:
    await inbox.keep(lacking("d-1"))
    assert (await inbox.forget(NOON + 1, 10)).rows == 0
    (lookup,) = await inbox.take_lookups(NOON, until=NOON + 60, limit=1)
    await inbox.declined(lookup.row_id, "not_allowed", "")
    assert (await inbox.forget(NOON + 1, 10)).rows == 1


async def test_deliveries_are_kept_while_others_are_forgotten(another: OpenInbox) -> None:
    async with another() as sweeper, another() as keeper, asyncio.timeout(120):
        await asyncio.gather(
            *(keeper.keep(delivery(f"old-{n}", asks=False, received_at=NOON - 9e6)) for n in range(200))
        )

        async def sweep(inbox: InboxStore) -> int:
            rows, more = 0, True
            while more:
                step = await inbox.forget(NOON - 8e6, 10)
                rows, more = rows + step.rows, step.more
            return rows

        sweeping = [asyncio.create_task(sweep(inbox)) for inbox in (sweeper, keeper)]
        stored = await asyncio.gather(*(keeper.keep(delivery(f"new-{n}")) for n in range(100)))
        removed = await asyncio.gather(*sweeping)
        assert sum(removed) <= 200
        await sweep(sweeper)
        assert Counter(one.decision for one in stored) == {Decision.ACCEPTED: 100}
        listed = await sweeper.entries(DeliveryFilter(), limit=500)
        assert len(listed.entries) == 100
