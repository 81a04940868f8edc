"""The wording of the pages."""

from dataclasses import replace

import pytest

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.queue_times.forecast import Forecast
from solstice_orchestrator.store.views import JobView, RunView
from solstice_orchestrator.web.pages import wording

RUN = RunView(
    run_id="r",
    request_id="q",
    state=RunState.RUNNING,
    detail="",
    source="forgejo",
    repo_url="https://forge.example/harbour/lighthouse.git",
    repo_full_name="harbour/lighthouse",
    commit_sha="a" * 40,
    ref="refs/heads/main",
    event="push",
    change_number=None,
    sender="mira",
    created_at=0.0,
    started_at=None,
    finished_at=None,
    rerun_of=None,
)
JOB = JobView(
    job_id="j",
    run_id="r",
    name="build",
    state=JobState.WAITING,
    reason=Reason.PLANNED,
    detail="",
    runs_on="linux",
    needs=("lint", "docs", "test"),
    priority=Priority.DEFAULT,
    attempt=0,
    created_at=0.0,
    started_at=None,
    finished_at=None,
    retry_at=None,
    exit_code=None,
    step=None,
    worker_id=None,
)


@pytest.mark.parametrize(
    ("source", "url", "link"),
    [
        ("forgejo", "https://forge.example/a/b.git", "https://forge.example/a/b/commit/"),
        ("github", "https://forge.example:8443/a/b/", "https://forge.example:8443/a/b/commit/"),
        ("gitlab", "http://forge.example/a/b/c", "http://forge.example/a/b/c/-/commit/"),
        ("manual", "file:///srv/b.git", None),
        ("manual", "ssh://git@forge.example/a/b", None),
        ("manual", "javascript:alert(1)//https://x/", None),
        ("manual", "javascript://forge.example/%0aalert(1)", None),
        ("manual", "https://user@forge.example/a/b", None),
        ("manual", "https://[forge/a/b", None),
        ("manual", "https:///a/b", None),
    ],
)
def test_commit_is_linked_where_it_can_be_read(source: str, url: str, link: str | None) -> None:
    assert wording.commit_link(replace(RUN, source=source, repo_url=url)) == (link and link + "a" * 40)


@pytest.mark.parametrize(
    ("source", "link"),
    [
        ("github", "https://forge.example/harbour/lighthouse/pull/7"),
        ("gitlab", "https://forge.example/harbour/lighthouse/-/merge_requests/7"),
        ("gitea", "https://forge.example/harbour/lighthouse/pulls/7"),
    ],
)
def test_change_request_is_linked_as_the_forge_does(source: str, link: str) -> None:
    assert wording.change_link(replace(RUN, source=source, change_number=7)) == link
    assert wording.change_link(replace(RUN, source=source)) is None


@pytest.mark.parametrize(
    ("ref", "number", "text_expected"),
    [
        ("refs/heads/feature/x", None, "feature/x"),
        ("refs/tags/v1", None, "tag v1"),
        ("refs/pull/7/head", 7, "#7"),
        ("odd", None, "odd"),
        (None, None, ""),
    ],
)
def test_ref(ref: str | None, number: int | None, text_expected: str) -> None:
    assert wording.ref_words(replace(RUN, ref=ref, change_number=number)) == text_expected


def test_repository_without_a_name_is_called_by_its_url() -> None:
    assert wording.repository(replace(RUN, repo_full_name=None)) == "lighthouse"


@pytest.mark.parametrize("state", [*JobState, *RunState])
def test_every_state_has_words(state: JobState | RunState) -> None:
    assert wording.state_words(state) in wording.STATE_WORDS.values()


@pytest.mark.parametrize(
    ("changes", "text_expected"),
    [
        ({"state": JobState.BLOCKED}, "Waits for lint, docs and test."),
        ({"state": JobState.BLOCKED, "needs": ("lint",)}, "Waits for lint."),
        ({"state": JobState.WAITING}, "Waits for a free slot of linux."),
        (
            {"state": JobState.BACKOFF, "reason": Reason.AGENT_LOST},
            "The orchestrator that ran it disappeared. It will be tried again.",
        ),
        ({"state": JobState.RUNNING}, ""),
        ({"state": JobState.RUNNING, "step": "test"}, "Runs step “test”."),
        ({"state": JobState.FAILED, "step": "test", "exit_code": 2}, "Step “test” ended with exit code 2."),
        (
            {"state": JobState.TIMED_OUT, "step": "test", "reason": Reason.STEP_TIMEOUT},
            "Step “test” took longer than its time limit.",
        ),
        ({"state": JobState.SUCCEEDED, "reason": Reason.COMPLETED}, "Every step ended well."),
        (
            {"state": JobState.WAITING, "reason": Reason.RETRYING},
            "It failed and is tried again; waits for a free slot of linux.",
        ),
        (
            {"state": JobState.FAILED, "step": "test", "exit_code": 2, "retries": 2, "retried": 2},
            "Step “test” ended with exit code 2. It was tried 3 times.",
        ),
        (
            {"state": JobState.SUCCEEDED, "reason": Reason.COMPLETED, "retries": 2, "retried": 1},
            "Every step ended well.",
        ),
        (
            {"state": JobState.BLOCKED, "reason": Reason.CONCURRENCY_GROUP},
            "Waits for its concurrency group.",
        ),
        ({"state": JobState.CANCELLED, "reason": Reason.CANCEL_REQUESTED}, "It was cancelled."),
        (
            {"state": JobState.CANCELLED, "reason": Reason.CANCEL_REQUESTED, "detail": "cancelled by mira"},
            "It was cancelled by mira.",
        ),
        (
            {
                "state": JobState.CANCELLED,
                "reason": Reason.CANCEL_REQUESTED,
                "detail": "/cancel by mira\nmore",
            },
            "It was cancelled (/cancel by mira).",
        ),
    ],
)
def test_reason(changes: dict[str, object], text_expected: str) -> None:
    assert wording.reason_words(replace(JOB, **changes)) == text_expected  # type: ignore[arg-type]  # fields of the table


@pytest.mark.parametrize(
    "reason",
    sorted(
        set(Reason)
        - {
            Reason.PLANNED,
            Reason.NEEDS_MET,
            Reason.APPROVED,
            Reason.CLAIMED,
            Reason.BACKOFF_OVER,
            Reason.RELEASED,
            Reason.RETRYING,
            Reason.CONCURRENCY_GROUP,
        }
    ),
)
def test_every_end_has_a_sentence(reason: Reason) -> None:
    assert wording.reason_words(replace(JOB, state=JobState.ERRORED, reason=reason)).endswith(".")


def test_detail_that_repeats_the_reason_is_left_out() -> None:
    job = replace(JOB, state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=2, step="test")
    assert not wording.more(replace(job, detail="step 'test' ended with exit code 2"))
    assert wording.more(replace(job, detail="out of memory")) == "out of memory"
    cancelled = replace(JOB, state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)
    assert not wording.more(replace(cancelled, detail="cancelled by mira"))
    assert wording.more(replace(cancelled, detail="cancelled by mira\nmore")) == "cancelled by mira\nmore"


@pytest.mark.parametrize(
    ("earliest", "latest", "text_expected"),
    [(90.0, 95.0, "any moment"), (160.0, 160.0, "in about 1 min 0 s"), (90.0, 220.0, "in 0 s to 2 min 0 s")],
)
def test_an_expected_start_is_reported_as_from_now(
    earliest: float, latest: float, text_expected: str
) -> None:
    assert wording.expected(Forecast(earliest=earliest, latest=latest), now=100.0) == text_expected
