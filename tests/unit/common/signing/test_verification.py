"""What a key may sign: by source, place, name and right."""

import pytest

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_common.signing.keys import KeyScope, Right
from solstice_common.signing.verification import outlived, overstep, signer_of
from tests.builders import job_request
from tests.signing import KeyPair, delivered

KEY = KeyPair(
    "narrow",
    KeyScope(
        sources=frozenset({Source.GITHUB}),
        repositories=("forge.example/river/*",),
        rights=frozenset({Right.CANCELS}),
    ),
).verify
ALLOWED = job_request(
    source=Source.GITHUB, repo_url="https://forge.example/river/otter", repo_full_name="river/otter"
)


def test_what_a_key_is_for_it_may_sign() -> None:
    assert overstep(KEY, ALLOWED, frozenset()) is None
    assert overstep(KEY, ALLOWED, {Right.CANCELS}) is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ALLOWED.model_copy(update={"source": Source.GITLAB}), "gitlab and river/otter"),
        (
            ALLOWED.model_copy(update={"repo_url": "https://forge.example/sea/otter"}),
            "github and river/otter at forge.example/sea/otter",
        ),
        (ALLOWED.model_copy(update={"repo_full_name": "sea/otter"}), "github and sea/otter at"),
        (
            ALLOWED.model_copy(
                update={"repo_full_name": None, "repo_url": "https://forge.example/sea/otter"}
            ),
            "github and forge.example/sea/otter at forge.example/sea/otter",
        ),
    ],
    ids=["source", "place", "name", "no name"],
)
def test_what_lies_outside_its_scope_is_refused(request_: JobRequestV1, words: str) -> None:
    refused = overstep(KEY, request_, frozenset())
    assert refused is not None
    assert refused.reason == "outside_scope"
    assert words in refused.detail


def test_a_missing_right_is_named() -> None:
    refused = overstep(KEY, ALLOWED, {Right.TRUSTED, Right.CANCELS})
    assert refused is not None
    assert refused.reason == "missing_right"
    assert "needs the right trusted, which" in refused.detail


def test_a_signed_delivery_has_the_key_that_signed_it() -> None:
    pair = KeyPair()
    assert signer_of(pair.signed(ALLOWED), JobRequestV1.VERSION, pair.known) is pair.verify


def test_an_unsigned_or_wrongly_signed_delivery_is_refused_with_the_reason() -> None:
    pair, other = KeyPair(), KeyPair()
    signed = pair.signed(ALLOWED)
    changed = delivered(signed.body.replace(b"otter", b"heron"), signed.headers[SIGNATURE_HEADER])
    for delivery, version, keys, reason, words in (
        (delivered(signed.body), JobRequestV1.VERSION, pair.known, "unsigned", "no header"),
        (
            delivered(signed.body, "x"),
            JobRequestV1.VERSION,
            pair.known,
            "malformed_signature",
            "no valid signature",
        ),
        (signed, JobRequestV1.VERSION, {}, "unknown_key", "'forge'"),
        (signed, JobCancelV1.VERSION, pair.known, "wrong_type", "as a jobcancel.v1"),
        (changed, JobRequestV1.VERSION, pair.known, "wrong_signature", "it was changed"),
        (signed, JobRequestV1.VERSION, other.known, "wrong_signature", "another key of that name"),
    ):
        refused = signer_of(delivery, version, keys)
        assert isinstance(refused, Refuse)
        assert refused.reason == reason
        assert words in refused.detail


def test_a_request_is_outlived_after_its_age_and_not_at_it() -> None:
    submitted = 1_772_366_400.0  # as ALLOWED says
    assert outlived(ALLOWED, now=submitted + 1e9, max_age_seconds=None) is None
    assert outlived(ALLOWED, now=submitted + 60, max_age_seconds=60) is None
    refused = outlived(ALLOWED, now=submitted + 60.5, max_age_seconds=60)
    assert refused is not None
    assert refused.reason == "too_old"
