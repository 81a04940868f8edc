"""The namespaces of workflow files, and trusted sources."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Source
from solstice_orchestrator.domain.trust import (
    DEFAULT_BRANCH,
    V1_TRUST,
    CacheScope,
    awaits_approval,
    cache_scopes,
    is_trusted,
    is_vouched_for,
    parse_sources,
    realm,
)
from tests.builders import job_request

REQUEST_ID = "0b2a4c1e-9f4e-4f0b-8a54-6f2f3d1f7a10"
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


REQUESTS = st.fixed_dictionaries(
    {
        "source": st.sampled_from(list(Source)),
        "trusted": st.sampled_from([True, False, None]),
        "ref": st.sampled_from([None, *(f"refs/heads/{name}" for name in ("main", "fix", "change 7"))])
        | st.sampled_from(["refs/tags/v1", "refs/pull/7/head", "refs/heads/"]),
        "default_branch": st.sampled_from([None, "main", "fix"]),
        "change_number": st.sampled_from([None, 1, 7]),
        "head_repo_url": st.sampled_from([None, FORK]),
        "needs_approval": st.sampled_from([None, True]),
        "approves": st.sampled_from([None, True]),
    }
)


@given(st.lists(REQUESTS, min_size=2, max_size=12), st.sampled_from([V1_TRUST, frozenset(Source)]))
def test_caches_that_an_untrusted_run_wrote_reach_no_trusted_one(
    runs: list[dict[str, Any]], v1_trust: frozenset[Source]
) -> None:
    """The model: a shelf of scopes, on which each run finds who wrote before it."""
    shelf: dict[CacheScope, list[bool]] = {}
    for fields in runs:
        request = job_request(**fields)
        trusted = is_trusted(request, v1_trust)
        own, *others = cache_scopes(request, v1_trust)
        for scope in (own, *others):
            if trusted:
                assert False not in shelf.get(scope, [])
            elif scope is not own:
                assert True in shelf.get(scope, [True])
        assert others in ([], [DEFAULT_BRANCH])
        shelf.setdefault(own, []).append(trusted)


@pytest.mark.parametrize(
    ("fields", "scopes"),
    [
        ({"ref": "refs/heads/main", "default_branch": "main"}, ["default branch"]),
        ({"ref": "refs/heads/main"}, ["default branch"]),
        ({"ref": "refs/heads/fix", "default_branch": "main"}, ["branch fix", "default branch"]),
        ({"ref": "refs/tags/v1"}, ["ref refs/tags/v1", "default branch"]),
        ({}, ["no ref", "default branch"]),
        ({"change_number": 7, "ref": "refs/heads/main"}, ["change 7", "default branch"]),
        (
            {"change_number": 7, "ref": "refs/heads/main", "trusted": False},
            ["change 7, untrusted", "default branch"],
        ),
        (
            {"ref": "refs/heads/main", "trusted": False, "request_id": REQUEST_ID},
            [f"request {REQUEST_ID}, untrusted", "default branch"],
        ),
    ],
)
def test_a_run_shares_caches_with_its_branch_or_change_and_reads_the_default_branch(
    fields: dict[str, Any], scopes: list[str]
) -> None:
    found = cache_scopes(job_request(**{"trusted": True, "ref": None, "source": "github", **fields}))
    assert [each.shown for each in found] == scopes
