"""Genuine requests are taken; changed, foreign, out-of-scope or old ones are refused."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Delivered, Delivery
from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, Source
from solstice_common.signing.jws import SignatureReason, sign
from solstice_common.signing.keys import KeyScope, Right, VerifyKey
from solstice_common.signing.merkle import MAX_BODIES, STEP_CHARACTERS
from solstice_common.values.times import parse_timestamp
from solstice_orchestrator.domain.signed_admission import (
    SignedExaminer,
    Verified,
    examine_signed,
    examine_signed_cancel,
    rights_for,
)
from solstice_orchestrator.domain.trust import V1_TRUST
from tests.builders import job_cancel, job_request
from tests.signing import EVERYWHERE, KeyPair, delivered

NOW = parse_timestamp("2026-03-01T12:00:30Z").timestamp()
PAIR, FOREIGN = KeyPair(), KeyPair("foreign")
OWNERS, NAMES = ("river", "lake"), ("otter", "heron", "otter/deep")

sources = st.sampled_from(Source)
requests = st.builds(
    lambda owner, name, **fields: job_request(
        repo_url=f"https://forge.example/{owner}/{name}.git",
        repo_full_name=f"{owner}/{name}",
        **{key: value for key, value in fields.items() if value is not None},
    ),
    st.sampled_from(OWNERS),
    st.sampled_from(NAMES),
    source=sources,
    trusted=st.booleans(),
    priority=st.none() | st.sampled_from(Priority),
    approves=st.none() | st.booleans(),
    needs_approval=st.none() | st.booleans(),
    sender=st.none() | st.text("abc é", min_size=1, max_size=8),
)
cancels = st.builds(
    lambda owner, source: job_cancel(
        repo_url=f"https://forge.example/{owner}/otter.git", repo_full_name=f"{owner}/otter", source=source
    ),
    st.sampled_from(OWNERS),
    sources,
)
scopes = st.builds(
    KeyScope,
    sources=st.frozensets(sources, min_size=1),
    repositories=st.lists(
        st.sampled_from(["**", "forge.example/river/*", "forge.example/lake/**", "other.example/**"]),
        min_size=1,
        max_size=2,
    ).map(tuple),
    rights=st.frozensets(st.sampled_from(Right)),
)


def examined(
    delivery: Any, keys: KeyPair = PAIR, *, max_age_seconds: float | None = None
) -> Verified[JobRequestV1] | Refuse:
    return examine_signed(delivery, keys.known, v1_trust=V1_TRUST, max_age_seconds=max_age_seconds, now=NOW)


def examiner_of(keys: Mapping[str, VerifyKey], *, max_age_seconds: float | None = None) -> SignedExaminer:
    return SignedExaminer(keys, v1_trust=V1_TRUST, max_age_seconds=max_age_seconds, signed_by=Counter())


def examined_by(
    examiner: SignedExaminer, deliveries: Sequence[Delivery], at_once: int = MAX_BODIES
) -> list[JobRequestV1 | Refuse]:
    """What it says of these deliveries, which come in batches of so many."""
    answers: list[JobRequestV1 | Refuse] = []
    for start in range(0, len(deliveries), at_once):
        batch = deliveries[start : start + at_once]
        answers += map(examiner.of_batch(batch, NOW), batch)
    return answers


def signed_group(count: int = 8, pair: KeyPair = PAIR) -> list[Delivered]:
    """Deliveries of one group."""
    bodies = [job_request(trusted=True).encode() for _ in range(count)]
    return [
        delivered(body, text)
        for body, text in zip(bodies, sign(bodies, JobRequestV1.VERSION, pair.signing), strict=True)
    ]


def reason(examined: Any) -> str:
    assert isinstance(examined, Refuse), examined
    assert examined.detail
    return examined.reason


@given(
    st.lists(
        st.tuples(
            requests,
            st.sampled_from(
                ["group", "other group", "alone", "changed", "moved", "bent", "cut", "foreign", "none"]
            ),
        ),
        min_size=1,
        max_size=30,
    ),
    scopes,
    st.integers(1, 60),
)
def test_an_examiner_of_many_answers_as_of_each_alone(
    batch: list[tuple[JobRequestV1, str]], scope: KeyScope, at_once: int
) -> None:
    """A signature that counted before does not count with another body or path."""
    pair = KeyPair("narrow", scope)
    keys = pair.known
    bodies = [request.encode() for request, _ in batch]
    together = sign([*bodies, b"last"], JobRequestV1.VERSION, pair.signing)
    others = sign([b"first", *bodies], JobRequestV1.VERSION, pair.signing)
    deliveries = []
    for at, ((_, kind), body, text) in enumerate(zip(batch, bodies, together, strict=False)):
        headers = {
            "other group": others[at + 1],
            "alone": sign([body], JobRequestV1.VERSION, pair.signing)[0],
            "moved": together[at - 1],
            "bent": text[:-1] + ("B" if text.endswith("A") else "A"),
            "cut": text[:-STEP_CHARACTERS],
            "foreign": sign([body, b""], JobRequestV1.VERSION, FOREIGN.signing)[0],
            "none": None,
        }
        sent = body.replace(b"lake", b"lack") + b" " if kind == "changed" else body
        deliveries.append(delivered(sent, headers.get(kind, text)))
    for max_age_seconds in (None, 29.0):
        examiner, accepted = examiner_of(keys, max_age_seconds=max_age_seconds), Counter[str]()
        expected: list[JobRequestV1 | Refuse] = []
        for delivery in deliveries * 2:
            alone = examine_signed(
                delivery, keys, v1_trust=V1_TRUST, max_age_seconds=max_age_seconds, now=NOW
            )
            if isinstance(alone, Verified):
                accepted[alone.key_name] += 1
            expected.append(alone.message if isinstance(alone, Verified) else alone)
        assert examined_by(examiner, deliveries * 2, at_once) == expected
        assert examiner.signed_by == accepted
    for (_, kind), delivery in zip(batch, deliveries, strict=True):
        if kind not in {"group", "other group", "alone"}:
            genuine = [text for text, body in zip(together, bodies, strict=False) if body == delivery.body]
            refused = isinstance(examined_by(examiner, [delivery])[0], Refuse)
            assert refused or delivery.headers[SIGNATURE_HEADER] in genuine


class CountingKeys(dict[str, VerifyKey]):
    """Keys that count how often one of them is asked for."""

    lookups = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(name, default)


def test_an_examiner_asks_for_the_key_of_a_group_only_until_it_knows_what_the_key_may_say() -> None:
    group, keys = signed_group(), CountingKeys(PAIR.known)
    examiner, counts = examiner_of(keys), []
    for delivery in group:
        assert isinstance(examined_by(examiner, [delivery])[0], JobRequestV1)
        counts.append(keys.lookups)
    assert counts[0] > 0
    assert set(counts) == {counts[0]}
    assert examiner.signed_by == {"forge": len(group)}


def test_what_was_proven_of_a_group_counts_for_the_key_that_signed_it_alone() -> None:
    """A revoked key has no memory, nor has another key of its name."""
    group = signed_group()
    assert all(isinstance(each, JobRequestV1) for each in examined_by(examiner_of(PAIR.known), group))
    for keys, expected in (
        ({}, SignatureReason.UNKNOWN_KEY),
        (FOREIGN.known, SignatureReason.UNKNOWN_KEY),
        (KeyPair("forge").known, SignatureReason.WRONG_SIGNATURE),
    ):
        assert {reason(each) for each in examined_by(examiner_of(keys), group)} == {expected}


@pytest.mark.parametrize("path", ["", "A", "~", "A" * 44, "\u00e9", "A" * 5000])
def test_a_message_with_a_wrong_path_spoils_no_other_of_its_group(path: str) -> None:
    group, examiner = signed_group(), examiner_of(PAIR.known)
    jws, _, _ = str(group[0].headers[SIGNATURE_HEADER]).partition("~")
    wrong = delivered(group[0].body, f"{jws}~{path}")
    for batch in ([wrong], [wrong, *group], [*group[:3], wrong, *group[3:]]):
        refused = [each for each in examined_by(examiner, batch) if isinstance(each, Refuse)]
        assert len(refused) == 1
    with mock.patch(
        "solstice_orchestrator.domain.signed_admission.examine_signed", side_effect=AssertionError
    ):
        assert len(examined_by(examiner, group)) == len(group)


@pytest.mark.parametrize(
    ("limit", "is_refused"),
    [
        ({}, False),
        ({"sources": frozenset(Source) - {Source.GITLAB}}, True),
        ({"rights": frozenset(Right) - {Right.PRIORITY}}, True),
        ({"repositories": ("forge.example/**", "*/**")}, False),
    ],
    ids=["unlimited", "a source", "a right", "a pattern"],
)
def test_a_key_that_may_say_everything_needs_no_check_of_what_its_requests_say(
    limit: dict[str, Any], is_refused: bool
) -> None:
    pair = KeyPair("forge", replace(EVERYWHERE, **limit))
    bodies = [
        job_request(trusted=True, source=source, priority=priority).encode()
        for source, priority in (
            (Source.FORGEJO, None),
            (Source.FORGEJO, None),
            (Source.GITLAB, Priority.HIGH),
        )
    ]
    batch = list(map(delivered, bodies, sign(bodies, JobRequestV1.VERSION, pair.signing)))
    with mock.patch(
        "solstice_orchestrator.domain.signed_admission.examine_signed", wraps=examine_signed
    ) as full_check:
        answers = examined_by(examiner_of(pair.known), batch)
    assert [isinstance(each, Refuse) for each in answers] == [False, False, is_refused]
    assert full_check.call_count == (2 if limit else 0)


def test_what_is_proven_of_two_groups_counts_for_no_mixture_of_them() -> None:
    """Neither in one batch with genuine messages, nor after them."""
    one, other = signed_group(), signed_group()
    texts = [[str(each.headers[SIGNATURE_HEADER]) for each in group] for group in (one, other)]
    (jws, _, path), (other_jws, _, other_path) = (text[0].partition("~") for text in texts)
    wrong = [
        delivered(body, text)
        for body in (one[0].body, other[0].body, one[1].body)
        for text in (
            f"{jws}~{other_path}",
            f"{other_jws}~{path}",
            jws,
            f"{jws}~",
            f"{jws}~~{path}",
            f"{jws}~{path}~{path}",
            f"{jws}~{path[STEP_CHARACTERS:]}",
            f"{jws}~{path}{other_path}",
            f"{jws}{other_jws}~{path}",
        )
    ]
    examiner = examiner_of(PAIR.known)
    for at_once in (1, 3, 100):
        mixed = [each for three in zip(one, wrong, other, strict=False) for each in three] + wrong
        answers = examined_by(examiner, mixed, at_once)
        for delivery, answer in zip(mixed, answers, strict=True):
            assert isinstance(answer, Refuse) == (delivery in wrong)
    assert examiner.signed_by == {"forge": 3 * (len(one) + len(other))}


def test_groups_that_come_mixed_are_verified_without_reading_their_paths() -> None:
    one, other = signed_group(), signed_group()
    mixed = [each for both in zip(one, other, strict=True) for each in both]
    examiner = examiner_of(PAIR.known)
    examined_by(examiner, signed_group())
    with mock.patch("solstice_common.signing.merkle._read_step", side_effect=AssertionError):
        assert not any(isinstance(each, Refuse) for each in examined_by(examiner, mixed))


def test_an_examiner_remembers_few_groups() -> None:
    examiner, (delivery,) = examiner_of(PAIR.known), signed_group(1)
    for number in range(200):
        examined_by(examiner, [delivered(delivery.body, f"x{number}..y~")])
    assert len(examiner._trees) <= 64


@given(
    st.lists(st.tuples(st.text(max_size=40) | st.integers() | st.none(), st.binary(max_size=9)), max_size=5)
)
def test_no_content_of_a_batch_breaks_an_examiner(batch: list[tuple[object, bytes]]) -> None:
    """An error would end the process, which would get the batch again."""
    jws = str(signed_group(2)[0].headers[SIGNATURE_HEADER]).partition("~")[0]
    deliveries = [
        delivered(body, text)
        for header, body in batch
        for text in (header, f"{jws}~{header}", f"{header}~{header}", f"\ud800{header}~")
    ]
    assert all(isinstance(each, Refuse) for each in examined_by(examiner_of(PAIR.known), deliveries))


@given(requests, cancels)
def test_every_genuine_message_is_taken(request: JobRequestV1, cancel: JobCancelV1) -> None:
    assert examined(PAIR.signed(request)) == Verified(request, "forge")
    assert examine_signed_cancel(PAIR.signed(cancel), PAIR.known) == Verified(cancel, "forge")


@given(st.lists(requests, min_size=1, max_size=20), st.data())
def test_every_changed_message_is_refused(batch: list[JobRequestV1], data: st.DataObject) -> None:
    bodies = [request.encode() for request in batch]
    signatures = sign(bodies, JobRequestV1.VERSION, PAIR.signing)
    place = data.draw(st.integers(0, len(bodies) - 1))
    body = bytearray(bodies[place])
    at = data.draw(st.integers(0, len(body) - 1))
    match data.draw(st.sampled_from(["replace", "insert", "remove"])):
        case "replace":
            body[at] ^= data.draw(st.integers(1, 255))
        case "insert":
            body.insert(at, data.draw(st.sampled_from(b" ,}0")))
        case _:
            del body[at]
    # Another signature of the batch does not change the meaning of this one.
    assume(bytes(body) not in bodies)
    assert reason(examined(delivered(bytes(body), signatures[place]))) == SignatureReason.WRONG_SIGNATURE


@given(requests)
def test_every_foreign_message_is_refused(request: JobRequestV1) -> None:
    assert reason(examined(delivered(request.encode()))) == SignatureReason.UNSIGNED
    assert reason(examined(FOREIGN.signed(request))) == SignatureReason.UNKNOWN_KEY
    assert reason(examined(KeyPair("forge").signed(request))) == SignatureReason.WRONG_SIGNATURE
    assert reason(examined(delivered(request.encode(), "x"))) == SignatureReason.MALFORMED_SIGNATURE


@given(requests, scopes)
def test_a_request_is_taken_exactly_when_its_key_may_say_it(request: JobRequestV1, scope: KeyScope) -> None:
    pair = KeyPair("narrow", scope)
    owner, _, name = (request.repo_full_name or "").partition("/")
    is_in_scope = request.source in scope.sources and any(
        {
            "**": True,
            "forge.example/river/*": owner == "river" and "/" not in name,
            "forge.example/lake/**": owner == "lake",
        }.get(pattern, False)
        for pattern in scope.repositories
    )
    may_say = (
        (request.trusted is False or "trusted" in scope.rights)
        and (request.priority not in {"critical", "high"} or "priority" in scope.rights)
        and (request.approves is not True or "approvals" in scope.rights)
    )
    verdict = examined(pair.signed(request), pair)
    if not is_in_scope:
        assert reason(verdict) == SignatureReason.OUTSIDE_SCOPE
    elif not may_say:
        assert reason(verdict) == SignatureReason.MISSING_RIGHT
    else:
        assert verdict == Verified(request, "narrow")


@given(cancels, scopes)
def test_a_cancel_is_taken_exactly_when_its_key_may_cancel_there(
    cancel: JobCancelV1, scope: KeyScope
) -> None:
    pair = KeyPair("narrow", scope)
    patterns = {"**", f"forge.example/{(cancel.repo_full_name or '').partition('/')[0]}/*"}
    patterns |= {pattern.removesuffix("*") + "**" for pattern in patterns if pattern != "**"}
    is_in_scope = cancel.source in scope.sources and not patterns.isdisjoint(scope.repositories)
    verdict = examine_signed_cancel(pair.signed(cancel), pair.known)
    if not is_in_scope:
        assert reason(verdict) == SignatureReason.OUTSIDE_SCOPE
    elif Right.CANCELS not in scope.rights:
        assert reason(verdict) == SignatureReason.MISSING_RIGHT
    else:
        assert verdict == Verified(cancel, "narrow")


def test_a_signature_does_not_count_for_a_message_of_another_kind() -> None:
    request, cancel = job_request(), job_cancel()
    assert reason(examined(PAIR.signed(cancel))) == SignatureReason.WRONG_TYPE
    assert reason(examine_signed_cancel(PAIR.signed(request), PAIR.known)) == SignatureReason.WRONG_TYPE
    # Not even when the body would be read as both: the version may be left out.
    body = request.encode().replace(b'"schema_version":"jobrequest.v1",', b"")
    as_cancel = delivered(body, sign([body], JobCancelV1.VERSION, PAIR.signing)[0])
    assert reason(examined(as_cancel)) == SignatureReason.WRONG_TYPE


def test_a_publisher_of_v1_needs_a_key_that_may_say_trusted_where_v1_trust_would_say_it() -> None:
    fields = {"schema_version", "request_id", "source", "repo_url", "commit_sha", "submitted_at"}
    plain = JobRequestV1.model_validate(
        {**job_request().model_dump(include=fields), "source": Source.MANUAL}, strict=False
    )
    assert plain.trusted is None
    untrusting = KeyPair("v1", KeyScope(sources=frozenset(Source), repositories=("**",), rights=frozenset()))
    assert reason(examined(untrusting.signed(plain), untrusting)) == SignatureReason.MISSING_RIGHT
    from_forge = plain.model_copy(update={"source": Source.GITHUB})
    assert isinstance(examined(untrusting.signed(from_forge), untrusting), Verified)
    assert rights_for(from_forge, V1_TRUST | {Source.GITHUB}) == {Right.TRUSTED}


def test_a_request_that_may_be_forgotten_is_too_old() -> None:
    """Until then, the store recognises a repeated request.

    After that, it may have removed its run.
    """
    delivery = PAIR.signed(job_request(submitted_at="2026-03-01T12:00:00Z"))
    assert isinstance(examined(delivery, max_age_seconds=30.0), Verified)
    assert reason(examined(delivery, max_age_seconds=29.0)) == SignatureReason.TOO_OLD
    assert isinstance(examined(delivery), Verified)


def test_a_genuine_body_that_is_no_request_is_refused_as_ever() -> None:
    for body, expected in (
        (b"{}", "invalid_field"),
        (b"\xff", "not_utf8"),
        (b'{"a":1,"a":2}', "invalid_field"),
    ):
        signed = delivered(body, sign([body], JobRequestV1.VERSION, PAIR.signing)[0])
        assert reason(examined(signed)) == expected


@pytest.mark.parametrize("signed", [True, False])
def test_an_oversized_body_is_refused_before_its_signature_is_computed(signed: bool) -> None:
    body = b"x" * (256 * 1024 + 1)
    delivery = PAIR.signed(job_request()) if signed else delivered(b"")
    huge = delivered(body, delivery.headers.get(SIGNATURE_HEADER))
    assert reason(examined(huge)) == "oversize"
    assert reason(examine_signed_cancel(huge, PAIR.known)) == "oversize"


def test_the_documents_list_every_reason() -> None:
    page = (Path(__file__).parents[4] / "docs" / "messages.md").read_text()
    section = page.partition("## Signatures")[2].partition("## Dead letters")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert rows[3:] == ["x-solstice-reason", *SignatureReason]
