"""The namespaces of workflow files, and trusted sources."""

from typing import Any

import pytest

from solstice_common.messages import Source
from solstice_orchestrator.domain.trust import awaits_approval, is_vouched_for, parse_sources, realm
from tests.builders import job_request

FORK = "https://forge.example/ada-brook/harbour.git"


def test_sources_are_read_with_blanks_and_empty_parts() -> None:
    assert parse_sources(" manual, github,,") == {Source.MANUAL, Source.GITHUB}
    assert parse_sources("") == frozenset()


def test_an_unknown_source_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"^'githob' is no source; there are .*github"):
        parse_sources("manual,githob")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"trusted": True, "head_repo_url": FORK}, "", id="trusted: the repository's own"),
        pytest.param({"trusted": False, "head_repo_url": FORK, "change_number": 7}, FORK, id="a fork's"),
        pytest.param({"trusted": False, "change_number": 7}, "#7", id="a change's, where the fork is gone"),
    ],
)
def test_untrusted_code_has_names_of_its_own(fields: dict[str, Any], expected: str) -> None:
    assert realm(job_request(**fields)) == expected


def test_untrusted_requests_without_a_change_share_no_names() -> None:
    one, other = (realm(job_request(trusted=False)) for _ in range(2))
    assert len({one, other, ""}) == 3


def test_a_source_trusted_by_the_operator_has_the_repository_s_own_names() -> None:
    request = job_request(source="github", trusted=None, change_number=None)
    assert realm(request) != ""
    assert realm(request, frozenset({Source.GITHUB})) == ""


@pytest.mark.parametrize(
    ("fields", "awaits", "vouched"),
    [
        pytest.param({}, False, False, id="not asked"),
        pytest.param({"needs_approval": True}, True, True, id="to be approved"),
        pytest.param({"needs_approval": True, "approves": True}, False, True, id="approved"),
    ],
)
def test_an_approval_ends_the_wait_and_not_the_need(
    fields: dict[str, bool], awaits: bool, vouched: bool
) -> None:
    request = job_request(trusted=False, change_number=7, head_repo_url=FORK, **fields)
    assert (awaits_approval(request), is_vouched_for(request)) == (awaits, vouched)
