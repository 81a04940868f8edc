"""What a key may sign: by source, place, name and right."""

import pytest

from solstice_common.messages import JobRequestV1, Source
from solstice_common.signing.keys import KeyScope, Right
from solstice_common.signing.verification import overstep
from tests.builders import job_request
from tests.signing import KeyPair

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
    assert overstep(KEY, ALLOWED, ()) is None
    assert overstep(KEY, ALLOWED, [Right.CANCELS]) is None


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
    refused = overstep(KEY, request_, ())
    assert refused is not None
    assert refused.reason == "outside_scope"
    assert words in refused.detail


def test_a_missing_right_is_named() -> None:
    refused = overstep(KEY, ALLOWED, [Right.TRUSTED, Right.CANCELS])
    assert refused is not None
    assert refused.reason == "missing_right"
    assert "needs the right trusted, which" in refused.detail
