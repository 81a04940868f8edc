"""Which lost deliveries to request again, and which heads were missed, decided without I/O."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import JobRequestV1, Source
from solstice_forge.decisions.requests import content_key
from solstice_forge.decisions.rules import Forks, Rule
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.forges.events import Ignored, IgnoreReason, Push
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.inbox.reconcile_state import KnownRepository, RefHead, ResendRecord
from solstice_forge.reconcile.missed_heads import (
    ForgeHead,
    HeadVerdict,
    changed,
    delivery_instead,
    judge,
    kinds_of,
    named_repositories,
    pushed,
)
from solstice_forge.reconcile.report import (
    MissedHead,
    ReconcileFindings,
    ReconcileProblem,
    ReconcileReport,
    ResentDelivery,
    decode_report,
    sentence,
)
from solstice_forge.reconcile.resending import (
    FIRST_PAUSE_SECONDS,
    MOST_TIMES,
    OVERLAP_SECONDS,
    ResendVerdict,
    failed,
    is_past,
    next_cursor,
    verdict,
)
from solstice_forge.remote.gitea_heads import GiteaBranch, GiteaRepository, OpenChange
from solstice_forge.remote.hooks import Attempt, Hook, HookOwner, calls_us
from solstice_forge.remote.responses import next_query

NOW = 1_790_000_000.0
OLD, NEW = "0a" * 20, "0b" * 20
REPOSITORY = GiteaRepository(
    full_name="river/otter",
    clone_url="https://forge.example/river/otter.git",
    default_branch="main",
    has_changes=True,
)
NOTHING = KnownRepository(kinds=frozenset(), compared=frozenset(), heads={})
COMPARED = KnownRepository(
    kinds=frozenset({"push", "change_request"}),
    compared=frozenset({"push", "change_request"}),
    heads={"refs/heads/main": OLD, "refs/pull/7/head": OLD},
)


def attempt(number: int, guid: str, *, succeeded: bool = False, at: float | None = NOW) -> Attempt:
    return Attempt(id=number, delivery_id=guid, event="push", succeeded=succeeded, why="502", delivered_at=at)


def source(*rules: Rule, origin: Source = Source.FORGEJO) -> WebhookSource:
    return WebhookSource(name="acme", forge=FORGES[origin], secrets=("s",), rules=rules)


def branch(sha: str = NEW, *, message: str = "more") -> GiteaBranch:
    return GiteaBranch(name="main", commit_sha=sha, message=message)


def change(sha: str = NEW, *, fork: bool = False) -> OpenChange:
    def side(ref: str, commit: str, number: int) -> dict[str, object]:
        name = "dora/otter" if number == 2 else "river/otter"
        repo = {"full_name": name, "clone_url": f"https://forge.example/{name}.git"}
        return {"ref": ref, "sha": commit, "repo_id": number, "repo": repo}

    document = {
        "draft": False,
        "updated_at": None,
        "head": side("spring", sha, 2 if fork else 1),
        "base": side("main", OLD, 1),
    }
    return OpenChange(number=7, commit_sha=sha, document=document)


def request_of(found: ForgeHead, whose: WebhookSource) -> JobRequestV1:
    made = delivery_instead(found, whose, now=NOW)
    assert isinstance(made, NewDelivery)
    assert made.request is not None
    return JobRequestV1.decode(made.request)


@pytest.mark.parametrize(
    ("arrived", "record", "expected"),
    [
        (True, None, ResendVerdict.ARRIVED),
        (True, ResendRecord(times=9, requested_at=NOW), ResendVerdict.ARRIVED),
        (False, None, ResendVerdict.SEND),
        (False, ResendRecord(times=1, requested_at=NOW - FIRST_PAUSE_SECONDS + 1), ResendVerdict.WAIT),
        (False, ResendRecord(times=1, requested_at=NOW - FIRST_PAUSE_SECONDS), ResendVerdict.SEND),
        (False, ResendRecord(times=2, requested_at=NOW - FIRST_PAUSE_SECONDS), ResendVerdict.WAIT),
        (False, ResendRecord(times=2, requested_at=NOW - 2 * FIRST_PAUSE_SECONDS), ResendVerdict.SEND),
        (False, ResendRecord(times=2, requested_at=NOW + 86_400), ResendVerdict.SEND),
        (False, ResendRecord(times=MOST_TIMES, requested_at=0.0), ResendVerdict.GIVEN_UP),
    ],
    ids=["here", "here after all", "never asked", "asked lately", "asked a while ago", "twice, lately",
         "twice, a while ago", "clock set back", "often enough"],
)  # fmt: skip
def test_lost_delivery_is_requested_again_a_limited_number_of_times(
    *, arrived: bool, record: ResendRecord | None, expected: ResendVerdict
) -> None:
    assert verdict(arrived=arrived, resends=record, now=NOW) is expected


def test_delivery_of_which_any_attempt_succeeded_is_not_lost() -> None:
    tried = [
        attempt(5, "a"),
        attempt(4, "a", succeeded=True),
        attempt(3, "b"),
        attempt(2, "b"),
        attempt(1, "c"),
    ]
    assert [(each.delivery_id, each.id) for each in failed(tried)] == [("c", 1), ("b", 3)]


ATTEMPTS = st.lists(
    st.builds(attempt, st.integers(1, 50), st.sampled_from("abcd"), succeeded=st.booleans()), max_size=20
)


@given(ATTEMPTS)
def test_every_delivery_is_lost_once_or_not_at_all(tried: list[Attempt]) -> None:
    lost = failed(tried)
    good = {each.delivery_id for each in tried if each.succeeded}
    assert Counter(each.delivery_id for each in lost) == Counter({e.delivery_id for e in tried} - good)
    assert [each.id for each in lost] == sorted(each.id for each in lost)


@given(ATTEMPTS, st.floats(NOW - 86_400, NOW + 10))
def test_what_was_dealt_with_is_past_and_what_came_since_is_not(tried: list[Attempt], began: float) -> None:
    by_id = [attempt(each.id, each.delivery_id, at=None) for each in tried]
    reached = next_cursor(by_id, began=began, cursor=None)
    assert all(is_past(each, since=0.0, cursor=reached) for each in by_id)
    assert not is_past(attempt(51, "new", at=None), since=0.0, cursor=reached)
    timed = next_cursor(tried, began=began, cursor=None)
    assert not is_past(attempt(51, "new", at=began), since=0.0, cursor=timed)
    assert is_past(attempt(51, "new", at=began - OVERLAP_SECONDS - 1), since=began, cursor=timed)


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("https://ci.example/webhooks/acme", True),
        ("https://ci.example/behind/a/proxy/webhooks/acme/?x=1", True),
        ("https://ci.example/webhooks/acme2", False),
        ("https://ci.example/webhooks/acmeX", False),
        ("https://chat.example/webhooks/other", False),
        ("https://chat.example/?to=/webhooks/acme", False),
        ("http://[broken/webhooks/acme", False),
        ("", False),
    ],
)
def test_only_hooks_that_call_us_are_looked_at(url: str, *, is_own: bool) -> None:
    place = HookOwner(name="river/otter", path="/p", repository="river/otter")
    assert calls_us(Hook(owner=place, path="/p/1", url=url), "acme") is is_own


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ('<https://a.example/x?cursor=v1_5&per_page=100>; rel="next"', {"cursor": "v1_5", "per_page": "100"}),
        ('<https://a.example/x?page=1>; rel="prev", <https://a.example/x?page=3>; rel=next', {"page": "3"}),
        ('<https://a.example/x?page=4>; REL="Next"', {"page": "4"}),
        ('<https://a.example/x?page=9>; rel="last"', None),
        ('<https://a.example/x?page=9>; rel="nextish"', None),
        ("", None),
        ("<<<;;;rel=next", None),
    ],
)
def test_next_page_is_found_in_the_link_header(link: str, expected: dict[str, str] | None) -> None:
    assert next_query(link) == expected


@pytest.mark.parametrize(
    ("known", "delivered", "expected"),
    [
        (NOTHING, False, HeadVerdict.BASELINE),
        (NOTHING, True, HeadVerdict.KNOWN),
        (COMPARED, True, HeadVerdict.KNOWN),
        (COMPARED, False, HeadVerdict.MISSED),
        (KnownRepository(kinds=frozenset(), compared=frozenset({"push"}), heads={}), False, HeadVerdict.MISSED),
        (KnownRepository(kinds=frozenset(), compared=frozenset({"change_request"}), heads={}), False, HeadVerdict.BASELINE),
        (KnownRepository(kinds=frozenset(), compared=frozenset(), heads={"refs/heads/main": OLD}), False, HeadVerdict.MISSED),
        (KnownRepository(kinds=frozenset(), compared=frozenset(), heads={"refs/heads/main": NEW}), False, HeadVerdict.KNOWN),
    ],
    ids=["first meeting", "told of", "told of, and compared", "moved on", "new branch", "other kind compared",
         "moved on before we looked", "as we know it"],
)  # fmt: skip
def test_head_that_moved_without_a_webhook_is_missed(
    known: KnownRepository, expected: HeadVerdict, *, delivered: bool
) -> None:
    head = RefHead(kind="push", ref="refs/heads/main", commit_sha=NEW)
    assert judge(head, known, delivered=delivered) is expected


@given(
    st.dictionaries(st.sampled_from(["refs/heads/main", "refs/heads/b"]), st.sampled_from([OLD, NEW])),
    st.frozensets(st.sampled_from(["push", "change_request"])),
    st.booleans(),
)
def test_no_head_is_built_that_was_delivered_or_remembered(
    heads: dict[str, str], compared: frozenset[str], delivered: bool
) -> None:
    head = RefHead(kind="push", ref="refs/heads/main", commit_sha=NEW)
    known = KnownRepository(kinds=frozenset({"push"}), compared=compared, heads=heads)
    judged = judge(head, known, delivered=delivered)
    assert (judged is HeadVerdict.KNOWN) == (delivered or heads.get(head.ref) == NEW)
    # A remembered head is known, with any commit.
    after = KnownRepository(kinds=known.kinds, compared=compared | {"push"}, heads={**heads, head.ref: NEW})
    assert judge(head, after, delivered=False) is HeadVerdict.KNOWN


def test_missed_push_is_the_event_that_its_webhook_would_have_been() -> None:
    found = pushed(source(), REPOSITORY, branch(), COMPARED)
    request = request_of(found, source())
    assert (request.event, request.ref, request.commit_sha, request.before_sha) == (
        "push",
        "refs/heads/main",
        NEW,
        OLD,
    )
    assert (request.repo_url, request.default_branch, request.trusted) == (REPOSITORY.clone_url, "main", True)
    real = Push(
        repo_full_name="river/otter",
        repo_url=REPOSITORY.clone_url,
        ref="refs/heads/main",
        commit_sha=NEW,
        before_sha=OLD,
        sender="ada",
    )
    assert found.keys(source()) == (request.idempotency_key,)
    assert content_key(real, source(), "any") == request.idempotency_key
    assert request.delivery_id == f"reconcile:{request.idempotency_key}"


def test_missed_pull_request_is_recognised_under_every_action() -> None:
    found = changed(source(), REPOSITORY, change(), NOTHING)
    made = delivery_instead(found, source(), now=NOW)
    assert isinstance(made, NewDelivery)
    assert len({made.content_key, *made.other_content_keys}) == 4
    assert '"action":"opened"' in made.body.decode()
    again = changed(source(), REPOSITORY, change(), COMPARED)
    assert '"action":"synchronized"' in again.payload.decode()
    assert set(again.keys(source())) == {made.content_key, *made.other_content_keys}


def test_fork_is_as_untrusted_as_by_its_webhook() -> None:
    found = changed(source(), REPOSITORY, change(fork=True), COMPARED)
    request = request_of(found, source())
    assert (request.trusted, request.needs_approval) == (False, True)
    assert request.head_repo_url == "https://forge.example/dora/otter.git"
    none = source(Rule(name="r", forks=Forks.NONE))
    refused = delivery_instead(changed(none, REPOSITORY, change(fork=True), COMPARED), none, now=NOW)
    assert isinstance(refused, Ignored)
    assert refused.reason is IgnoreReason.FORK_NOT_BUILT


@pytest.mark.parametrize(
    ("whose", "message", "reason"),
    [
        (source(), "wip [skip ci]", IgnoreReason.SKIP_CI),
        (source(Rule(name="r", branches=("release/*",))), "more", IgnoreReason.BRANCH_NOT_BUILT),
        (source(Rule(name="r", repositories=("sea/*",))), "more", IgnoreReason.NO_RULE),
    ],
    ids=["skip ci", "branch", "repository"],
)
def test_what_the_rules_leave_out_is_not_built(
    whose: WebhookSource, message: str, reason: IgnoreReason
) -> None:
    made = delivery_instead(pushed(whose, REPOSITORY, branch(message=message), COMPARED), whose, now=NOW)
    assert isinstance(made, Ignored)
    assert made.reason is reason


def test_branch_of_a_name_that_cannot_be_built_is_no_head() -> None:
    odd = GiteaBranch(name="a b", commit_sha=NEW, message="")
    assert pushed(source(), REPOSITORY, odd, COMPARED).head is None


def test_only_delivered_or_named_repositories_are_compared() -> None:
    delivered = KnownRepository(kinds=frozenset({"", "push"}), compared=frozenset(), heads={})
    assert kinds_of(delivered, is_named=False) == ("push",)
    assert kinds_of(delivered, is_named=True) == ("push", "change_request")
    rules = (Rule(name="r", repositories=("river/otter", "sea/*", "lake/[ab]")),)
    assert named_repositories(rules) == {"river/otter"}


def test_report_survives_and_says_what_happened() -> None:
    made = MissedHead(
        repository="r/o", ref="refs/heads/main", commit_sha=NEW, decision="accepted", reason="reconciled"
    )
    report = ReconcileReport(
        source="acme",
        dry_run=False,
        repositories=2,
        sent=(ResentDelivery(place="r/o", delivery_id="g", event="push", failure="502", times=1),),
        made=(made,),
        baseline=3,
        troubles=(ReconcileProblem(place="r/p", detail="404"),),
    )
    assert decode_report(report.encoded()) == report
    assert decode_report(b'{"other": 1}') is None
    assert sentence(report) == (
        "2 repositories: 1 delivery asked for again, 1 missed head built, 3 met for the first time, not built, 1 problem"
    )
    assert (
        sentence(ReconcileReport(source="acme", dry_run=False, repositories=1))
        == "1 repository: nothing was missed"
    )


def test_findings_become_the_report_of_their_source() -> None:
    sent = ResentDelivery(place="r/o", delivery_id="g", event="push", failure="502", times=1)
    made = MissedHead(repository="r/o", ref="r", commit_sha=NEW, decision="ignored", reason="no_rule")
    problem = ReconcileProblem(place="r/p", detail="404")
    findings = ReconcileFindings(
        repositories=2, sent=[sent], made=[made], baseline=3, waiting=4, given_up=["g"], troubles=[problem]
    )
    assert findings.report("acme", dry_run=True) == ReconcileReport(
        source="acme",
        dry_run=True,
        repositories=2,
        sent=(sent,),
        made=(made,),
        baseline=3,
        waiting=4,
        given_up=("g",),
        troubles=(problem,),
    )
    nothing = ReconcileReport(source="acme", dry_run=False, repositories=0)
    assert ReconcileFindings().report("acme", dry_run=False) == nothing
    assert decode_report(nothing.encoded()) == nothing


def test_sentence_counts_one_and_many_and_says_what_a_dry_run_would_do() -> None:
    sent = ResentDelivery(place="r/o", delivery_id="g", event="push", failure="502", times=1)
    made = MissedHead(repository="r/o", ref="r", commit_sha=NEW, decision="accepted", reason="reconciled")
    ignored = MissedHead(repository="r/o", ref="r", commit_sha=NEW, decision="ignored", reason="no_rule")
    many = ReconcileReport(
        source="acme",
        dry_run=True,
        repositories=2,
        sent=(sent, sent),
        made=(made, made, ignored),
        waiting=1,
        given_up=("a", "b"),
        troubles=(ReconcileProblem(place="r/p", detail="404"),) * 2,
    )
    assert sentence(many) == (
        "2 repositories: 2 deliveries to be asked for again, 2 missed heads to be built, "
        "1 delivery asked for before and not here yet, 2 deliveries given up, 2 problems"
    )
    unbuilt = ReconcileReport(source="acme", dry_run=False, repositories=0, made=(ignored,))
    assert sentence(unbuilt) == "0 repositories: nothing was missed"


@pytest.mark.parametrize(
    ("at", "since", "cursor", "past"),
    [
        (NOW, NOW, None, False),
        (NOW - 1, NOW, None, True),
        (NOW - OVERLAP_SECONDS, 0.0, NOW, False),
        (NOW - OVERLAP_SECONDS - 1, 0.0, NOW, True),
        (NOW - OVERLAP_SECONDS - 1, 0.0, None, False),
    ],
    ids=["as old as wanted", "too old", "in the overlap", "dealt with", "never looked"],
)
def test_attempt_with_a_time_is_past_when_it_is_too_old_or_dealt_with(
    at: float, since: float, cursor: float | None, *, past: bool
) -> None:
    assert is_past(attempt(1, "a", at=at), since=since, cursor=cursor) is past


def test_attempt_without_a_time_is_past_up_to_the_id_that_was_reached() -> None:
    reached = [is_past(attempt(number, "a", at=None), since=NOW, cursor=7.0) for number in (6, 7, 8)]
    assert reached == [True, True, False]
    assert not is_past(attempt(1, "a", at=None), since=NOW, cursor=None)


def test_what_was_reached_stays_when_nothing_is_listed() -> None:
    assert next_cursor([], began=NOW, cursor=7.0) == 7.0
    assert next_cursor([attempt(3, "a")], began=NOW, cursor=7.0) == NOW
    assert next_cursor([attempt(9, "a", at=None), attempt(3, "b", at=None)], began=NOW, cursor=7.0) == 9.0


def test_missed_head_is_stored_as_found_by_comparing() -> None:
    made = delivery_instead(pushed(source(), REPOSITORY, branch(), COMPARED), source(), now=NOW)
    assert isinstance(made, NewDelivery)
    assert (made.reason, made.event_name, made.received_at) == ("reconciled", "push", NOW)
    assert "the branch was found when it was compared" in made.detail
    assert made.headers == {"content-type": "application/json"}
    change_made = delivery_instead(changed(source(), REPOSITORY, change(), COMPARED), source(), now=NOW)
    assert isinstance(change_made, NewDelivery)
    assert change_made.event_name == "pull_request"
    assert "the pull request was found when it was compared" in change_made.detail


def test_new_branch_comes_after_nothing() -> None:
    request = request_of(pushed(source(), REPOSITORY, branch(), NOTHING), source())
    assert request.before_sha is None


def test_head_names_the_commit_of_its_ref() -> None:
    whole = changed(source(), REPOSITORY, change(), COMPARED)
    assert whole.head == RefHead(kind="change_request", ref="refs/pull/7/head", commit_sha=NEW)
    assert pushed(source(), REPOSITORY, branch(), COMPARED).head == RefHead(
        kind="push", ref="refs/heads/main", commit_sha=NEW
    )
