"""The calls to each forge, with their content, and the meaning of its answers."""

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.broker.delivery import Refuse
from solstice_common.errors import ConfigurationError
from solstice_common.signing.github_app import signing_key
from solstice_forge.remote import gitea_family_calls, github_calls, gitlab_calls
from solstice_forge.remote.call_pacing import ForgeAnswer
from solstice_forge.remote.protocol import (
    AppCredentials,
    CallDone,
    CallPostponed,
    CallRefused,
    CommitStatus,
    ForgeAccess,
    ForgeCall,
    nothing,
)
from solstice_forge.remote.responses import DETAIL_CHARACTERS, result_of, words_of
from solstice_forge.remote.texts import link, shortened
from solstice_forge.statuses.call_endings import (
    DEFAULT_RETRY_RULES,
    Reported,
    RetryLater,
    Undeliverable,
    ending,
)
from solstice_forge.statuses.reportable_status import (
    NotReported,
    ReportableStatus,
    commit_status,
    reportable,
)
from tests.statuses import SHA, job_status, run_id

NOW = 1_790_000_000.0
UNHURRIED = settings(deadline=None)
STATES = [
    "planning", "waiting", "blocked", "backoff", "approval", "running",
    "succeeded", "failed", "errored", "cancelled", "timed_out", "skipped", "a state of tomorrow",
]  # fmt: skip
FORGES = pytest.mark.parametrize(
    "forge",
    [github_calls, gitea_family_calls, gitlab_calls],
    ids=lambda forge: str(forge.__name__.rpartition(".")[2]),
)


def status(**changes: Any) -> CommitStatus:
    fields: dict[str, Any] = {
        "repository": "river/app",
        "commit_sha": SHA,
        "context": "solstice/build",
        "state": "running",
        "description": "Runs",
        "occurred_at": "2026-03-01T12:00:00.000Z",
        **changes,
    }
    return CommitStatus(**fields)


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (github_calls, "pending pending pending pending pending pending success failure error error failure success pending"),
        (gitea_family_calls, "pending pending pending pending pending pending success failure error failure failure success pending"),
        (gitlab_calls, "pending pending pending pending pending running success failed failed canceled failed success pending"),
    ],
    ids=["github", "gitea_family", "gitlab"],
)  # fmt: skip
def test_our_states_have_a_word_of_every_forge(forge: ModuleType, words: str) -> None:
    reported = [forge.set_status(status(state=state)).body["state"] for state in STATES]
    assert reported == words.split()


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        ("waiting", {"status": "queued"}),
        ("approval", {"status": "queued"}),
        ("running", {"status": "in_progress", "started_at": "2026-03-01T12:00:00.000Z"}),
        ("succeeded", {"status": "completed", "conclusion": "success"}),
        ("failed", {"status": "completed", "conclusion": "failure"}),
        ("errored", {"status": "completed", "conclusion": "failure"}),
        ("cancelled", {"status": "completed", "conclusion": "cancelled"}),
        ("timed_out", {"status": "completed", "conclusion": "timed_out"}),
        ("skipped", {"status": "completed", "conclusion": "skipped"}),
    ],
)
def test_our_states_are_states_of_check_runs(state: str, fields: dict[str, str]) -> None:
    new = github_calls.set_check(status(state=state), None)
    assert (new.method, new.path) == ("POST", "/repos/river/app/check-runs")
    assert new.body is not None
    assert {name: new.body.get(name) for name in fields} == fields
    assert new.body["head_sha"] == SHA
    old = github_calls.set_check(status(state=state), 7)
    assert (old.method, old.path) == ("PATCH", "/repos/river/app/check-runs/7")
    assert old.body is not None
    assert "head_sha" not in old.body


@FORGES
def test_only_github_has_check_runs(forge: ModuleType) -> None:
    assert (forge.CHECKS is not None) == (forge is github_calls)


@pytest.mark.parametrize(
    ("forge", "repository", "path"),
    [
        (github_calls, "river/app", f"/repos/river/app/statuses/{SHA}"),
        (gitea_family_calls, "river/app", f"/repos/river/app/statuses/{SHA}"),
        (gitea_family_calls, "ri ver/a?p", f"/repos/ri%20ver/a%3Fp/statuses/{SHA}"),
        (gitlab_calls, "river/mouth/app", f"/projects/river%2Fmouth%2Fapp/statuses/{SHA}"),
    ],
)
def test_a_status_goes_to_its_commit(forge: ModuleType, repository: str, path: str) -> None:
    assert forge.set_status(status(repository=repository)).path == path


@pytest.mark.parametrize(
    ("forge", "url", "api"),
    [
        (github_calls, "https://github.com", "https://api.github.com"),
        (github_calls, "https://github.com/", "https://api.github.com"),
        (github_calls, "https://git.acme.example", "https://git.acme.example/api/v3"),
        (github_calls, "https://acme.ghe.com", "https://api.acme.ghe.com"),
        (gitlab_calls, "https://gitlab.com", "https://gitlab.com/api/v4"),
        (gitea_family_calls, "https://acme.example/git/", "https://acme.example/git/api/v1"),
        (gitea_family_calls, "https://forge.example", "https://forge.example/api/v1"),
    ],
)
def test_every_forge_has_its_api_where_it_keeps_it(forge: ModuleType, url: str, api: str) -> None:
    assert forge.api_url(url) == api


@FORGES
@UNHURRIED
@given(text=st.text(max_size=2000), context=st.text(min_size=1, max_size=300))
def test_no_text_of_ours_is_longer_than_a_forge_takes(forge: ModuleType, text: str, context: str) -> None:
    body = forge.set_status(status(description=text, context=context, target_url="https://x/" + text)).body
    most = 140 if forge is github_calls else 255
    assert len(body["description"]) <= most
    assert len(body.get("context", body.get("name"))) <= 255
    assert all(each.isprintable() for each in body["description"])
    if forge is github_calls:
        assert all(ord(each) <= 0xFFFF for each in body["description"] + body["context"])
    if forge is gitlab_calls:
        assert len(body.get("target_url", "")) <= 255


@UNHURRIED
@given(text=st.text(max_size=200), characters=st.integers(2, 60), most=st.integers(4, 80))
def test_a_cut_text_fits_and_is_whole_when_it_fitted(text: str, characters: int, most: int) -> None:
    cut = shortened(text, characters, bytes_limit=most)
    assert len(cut) <= characters
    assert len(cut.encode()) <= most
    whole = shortened(text, 1000)
    if len(whole) <= characters and len(whole.encode()) <= most:
        assert cut == whole


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("https://ci.example/jobs/1", "https://ci.example/jobs/1"),
        ("https://ci.example/" + "x" * 300, None),
        ("javascript:alert(1)", None),
        (None, None),
    ],
    ids=["short", "too long", "no web address", "none"],
)
def test_a_link_is_whole_or_absent(url: str | None, reported: str | None) -> None:
    assert link(url, 255) == reported


@pytest.mark.parametrize(
    ("words", "already"),
    [
        ("Cannot transition status via :enqueue from :pending", True),
        ('Cannot transition status via :run from :running (Reason(s): Status cannot transition via "run")', True),
        ("Cannot transition status via :success from :success", True),
        ("Cannot transition status via :enqueue from :success", False),
        ("state does not have a valid value", False),
    ],
)  # fmt: skip
def test_status_that_gitlab_shows_already_counts_as_reported(words: str, already: bool) -> None:
    call = gitlab_calls.set_status(status())
    assert call.already(400, words) is already
    assert not call.already(404, words)


@pytest.mark.parametrize(
    ("code", "kind", "perhaps_done"),
    [
        (201, None, False), (200, None, False), (202, None, False),
        (400, CallRefused, False), (403, CallRefused, False), (404, CallRefused, False), (405, CallRefused, False), (410, CallRefused, False),
        (422, CallRefused, False), (301, CallRefused, False), (307, CallRefused, False),
        (401, CallPostponed, False), (408, CallPostponed, True), (409, CallPostponed, False), (425, CallPostponed, False), (429, CallPostponed, False),
        (500, CallPostponed, False), (501, CallPostponed, False), (502, CallPostponed, True), (503, CallPostponed, False), (504, CallPostponed, True),
        (520, CallPostponed, False),
    ],
)  # fmt: skip
def test_what_an_answer_means(code: int, kind: type | None, perhaps_done: bool) -> None:
    reported = result_of(ForgeAnswer(status=code, headers={}), NOW)
    assert reported is None if kind is None else isinstance(reported, kind)
    assert getattr(reported, "perhaps_done", False) is perhaps_done


@UNHURRIED
@given(
    body=st.binary(max_size=3000),
    secret=st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=16, max_size=40),
)
def test_the_words_of_a_refusal_never_hold_our_token(body: bytes, secret: str) -> None:
    reported = words_of(
        secret.encode("utf-8", "replace") + body + secret.encode("utf-8", "replace"), (secret,)
    )
    assert secret not in reported
    assert len(reported) <= DETAIL_CHARACTERS
    assert reported.isprintable()


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b'{"message":"Not Found","documentation_url":"https://docs.example"}', "Not Found"),
        (b'{"message":"Validation Failed","errors":[{"code":"custom"}]}', 'Validation Failed: [{"code":"custom"}]'),
        (b'{"message":{"base":["is wrong"]}}', '{"base":["is wrong"]}'),
        (b'{"error":"invalid_token","error_description":"Token was revoked."}', "invalid_token: Token was revoked."),
        (b"<html>\n502 Bad\tGateway</html>", "<html> 502 Bad Gateway</html>"),
        (b"", ""),
    ],
    ids=["GitHub", "GitHub's errors", "GitLab's object", "GitLab's error", "a proxy", "nothing"],
)  # fmt: skip
def test_the_words_of_each_forge_are_found(body: bytes, reported: str) -> None:
    assert words_of(body) == reported


def test_the_words_of_a_refusal_are_cut_at_their_longest() -> None:
    assert words_of(b"x" * DETAIL_CHARACTERS) == "x" * DETAIL_CHARACTERS
    assert words_of(b"x" * (DETAIL_CHARACTERS + 1)) == "x" * (DETAIL_CHARACTERS - 1) + "…"


def test_a_refusal_has_the_forges_words_or_says_that_there_are_none() -> None:
    assert result_of(ForgeAnswer(status=404, headers={}, detail="Not Found"), NOW) == CallRefused(
        status=404, detail="Not Found"
    )
    assert result_of(ForgeAnswer(status=404, headers={}), NOW) == CallRefused(
        status=404, detail="no reason given"
    )
    assert result_of(ForgeAnswer(status=502, headers={}, detail="Bad Gateway"), NOW) == CallPostponed(
        at=NOW, why="502 Bad Gateway", perhaps_done=True
    )
    assert result_of(ForgeAnswer(status=429, headers={}), NOW) == CallPostponed(
        at=NOW, why="429", limited=True
    )


@pytest.mark.parametrize(
    ("method", "writes"), [("GET", False), ("HEAD", False), ("POST", True), ("PATCH", True)]
)
def test_a_call_that_changes_something_is_distinguished_from_a_question(method: str, *, writes: bool) -> None:
    assert ForgeCall(method=method, path="/", read=nothing).writes is writes


def test_credentials_are_in_no_text_of_a_value() -> None:
    access = ForgeAccess(
        name="acme",
        origin=job_status(source="github").source,
        url="https://github.com",
        token="ghp_invented",
        app=AppCredentials(id=1, private_key="-----BEGIN invented"),
    )
    assert "invented" not in repr(access) + str(access)


@pytest.mark.parametrize(
    "pem", ["", "no key", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----"]
)
def test_an_invalid_key_is_a_setting_to_fix(pem: str) -> None:
    with pytest.raises(ConfigurationError, match="private key") as reported:
        signing_key(pem)
    assert "AAAA" not in str(reported.value)


HAS_REMOTE = {"forgejo": True, "gitea": False}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source_name": None}, NotReported("no_source")),
        ({"source_name": "gitea"}, NotReported("no_credentials")),
        ({"source_name": "gone"}, "unknown_source"),
        ({"repo_full_name": None, "repo_url": "https://forge.example/app.git"}, "no_repository"),
    ],
    ids=["by hand", "no token", "no such source", "no repository"],
)
def test_statuses_without_a_source_or_repository_are_not_reported(
    changes: dict[str, Any], expected: Any
) -> None:
    found = reportable(job_status(**changes).encode(), HAS_REMOTE)
    assert (found.reason if isinstance(found, Refuse) else found) == expected


def test_a_message_that_is_none_is_refused() -> None:
    assert isinstance(reportable(b"{}", HAS_REMOTE), Refuse)


@pytest.mark.parametrize(
    ("changes", "repository"),
    [
        ({}, "river/app"),
        ({"repo_full_name": None}, "river/app"),
        ({"repo_full_name": None, "repo_url": "ssh://git@forge.example/river/mouth/app.git"}, "river/mouth/app"),
    ],
)  # fmt: skip
def test_the_repository_is_named_or_found_in_its_url(changes: dict[str, Any], repository: str) -> None:
    found = reportable(job_status(**changes).encode(), HAS_REMOTE)
    assert isinstance(found, ReportableStatus)
    assert found.repository == repository


@pytest.mark.parametrize(
    ("state", "revision", "place", "final"),
    [("running", None, f"{run_id(1)}.3.0", False), ("succeeded", 2, f"{run_id(1)}.3.2", True)],
)
def test_a_wanted_status_has_its_place_and_whether_it_is_the_last(
    state: str, revision: int | None, place: str, final: bool
) -> None:
    body = job_status(state, sequence=3, revision=revision).encode()
    found = reportable(body, HAS_REMOTE)
    assert isinstance(found, ReportableStatus)
    assert (found.source_name, found.commit_sha, found.context, found.state, found.body) == (
        "forgejo",
        SHA,
        "solstice/build",
        state,
        body,
    )
    assert (found.run_id, found.request_id, found.sequence) == (run_id(1), run_id(1), 3)
    assert (found.place, found.final) == (place, final)


def test_a_status_is_reported_with_all_that_its_message_holds() -> None:
    body = job_status("failed", ref="refs/heads/main", target_url="https://ci.example/jobs/1").encode()
    assert commit_status("river/app", body) == CommitStatus(
        repository="river/app",
        commit_sha=SHA,
        context="solstice/build",
        state="failed",
        description="It is failed",
        occurred_at="2026-03-01T12:00:00.000Z",
        target_url="https://ci.example/jobs/1",
        ref="refs/heads/main",
        external_id=run_id(1),
    )


def test_a_state_without_a_description_speaks_for_itself() -> None:
    reported = commit_status("river/app", job_status("timed_out", description=None).encode())
    assert reported.description == "timed out"


@pytest.mark.parametrize(
    ("result", "failing_for", "expected"),
    [
        (CallDone(None), None, Reported()),
        (CallDone(7), 5.0, Reported(check_id=7)),
        (
            CallRefused(status=404, detail="Not Found"),
            None,
            Undeliverable(reason="not_found", detail="404 Not Found"),
        ),
        (
            CallRefused(status=0, detail="no token"),
            None,
            Undeliverable(reason="no_credentials", detail="0 no token"),
        ),
        (
            CallRefused(
                status=422, detail="This SHA and context has reached the maximum number of statuses."
            ),
            None,
            Undeliverable(
                reason="too_many_statuses",
                detail="422 This SHA and context has reached the maximum number of statuses.",
            ),
        ),
        (
            CallPostponed(at=NOW + 60, why="429", limited=True),
            DEFAULT_RETRY_RULES.give_up + 1,
            RetryLater(at=NOW + 60, why="429", failed=False, perhaps_done=False),
        ),
        (
            CallPostponed(at=NOW, why="500"),
            DEFAULT_RETRY_RULES.give_up,
            Undeliverable(reason="forge_unavailable", detail="given up after 4 attempts: 500"),
        ),
    ],
    ids=[
        "done",
        "done as a check",
        "not found",
        "no token",
        "too many",
        "a limit never gives up",
        "given up",
    ],
)
def test_what_follows_from_the_end_of_a_call(result: Any, failing_for: float | None, expected: Any) -> None:
    since = None if failing_for is None else NOW - failing_for
    reported = ending(
        result, failures=3, failing_since=since, now=NOW, rng=random.Random(1), rules=DEFAULT_RETRY_RULES
    )
    assert reported == expected


@UNHURRIED
@given(failures=st.integers(0, 100), seed=st.integers())
def test_a_failure_is_tried_again_after_a_while_that_has_an_end(failures: int, seed: int) -> None:
    reported = ending(
        CallPostponed(at=NOW + 1, why="500", perhaps_done=True),
        failures=failures,
        failing_since=NOW - 10,
        now=NOW,
        rng=random.Random(seed),
        rules=DEFAULT_RETRY_RULES,
    )
    assert isinstance(reported, RetryLater)
    assert NOW + 1 <= reported.at <= NOW + max(1.0, DEFAULT_RETRY_RULES.last_retry)
    assert reported.failed
    assert reported.perhaps_done
