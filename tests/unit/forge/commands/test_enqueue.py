"""The input of `solstice enqueue` becomes a manual request."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from solstice_common.broker import Published, PublishStatus
from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobRequestV1, Source
from solstice_common.settings import BrokerSettings
from solstice_forge.commands.enqueue import EnqueueInput, advice, job_request

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
JOB_INPUT = EnqueueInput(repo_url="https://forge.example/acme/anvil.git", commit_sha="c" * 40)


def made(job_input: EnqueueInput, new_id: int = 1) -> JobRequestV1:
    return job_request(job_input, now=NOW, new_id=uuid.UUID(int=new_id))


def test_input_becomes_a_manual_request() -> None:
    request = made(
        replace(JOB_INPUT, runs_on="linux", workflow_job_id="lint", priority="high", ref="refs/heads/main")
    )
    assert request.source is Source.MANUAL
    assert (request.repo_url, request.commit_sha) == (JOB_INPUT.repo_url, JOB_INPUT.commit_sha)
    assert (request.runs_on, request.workflow_job_id, request.priority) == ("linux", "lint", "high")
    assert request.submitted_at == "2026-01-31T12:00:00.000Z"
    assert request.trusted


def test_absent_fields_are_not_sent() -> None:
    assert b"workflow_path" not in made(JOB_INPUT).encode()


def test_same_key_is_the_same_request() -> None:
    job_input = replace(JOB_INPUT, idempotency_key="nightly-2026-01-31")
    assert made(job_input, 1).request_id == made(job_input, 2).request_id


def test_without_a_key_every_command_is_a_new_request_with_a_key_of_its_own() -> None:
    first, second = made(JOB_INPUT, 1), made(JOB_INPUT, 2)
    assert first.request_id != second.request_id
    assert made(replace(JOB_INPUT, idempotency_key=first.idempotency_key)).request_id == first.request_id


def test_capital_digits_of_a_commit_are_the_same_commit() -> None:
    assert made(replace(JOB_INPUT, commit_sha="ABCDEF" + "0" * 34)).commit_sha == "abcdef" + "0" * 34


@pytest.mark.parametrize(
    ("job_input", "not_before"),
    [
        (replace(JOB_INPUT, not_before="2026-01-31T22:00:00+01:00"), "2026-01-31T21:00:00.000Z"),
        (replace(JOB_INPUT, not_before="2001-01-01T00:00:00Z"), "2001-01-01T00:00:00.000Z"),
        (replace(JOB_INPUT, delay="90"), "2026-01-31T12:01:30.000Z"),
        (replace(JOB_INPUT, delay="1d"), "2026-02-01T12:00:00.000Z"),
        (replace(JOB_INPUT, delay="366d"), "2027-02-01T12:00:00.000Z"),
        (JOB_INPUT, None),
    ],
    ids=["offset", "past", "seconds", "a day", "the longest", "at once"],
)
def test_when_it_is_to_start_travels_in_utc(job_input: EnqueueInput, not_before: str | None) -> None:
    assert made(job_input).not_before == not_before


def test_a_repeated_delay_under_one_key_is_one_request() -> None:
    job_input = replace(JOB_INPUT, delay="1h", idempotency_key="tonight")
    later = job_request(job_input, now=NOW.replace(hour=15), new_id=uuid.UUID(int=2))
    assert later.request_id == made(job_input).request_id


def test_a_folder_becomes_its_url(tmp_path: Path) -> None:
    folder = tmp_path / "a repository"
    folder.mkdir()
    assert made(replace(JOB_INPUT, repo_url=str(folder))).repo_url == folder.as_uri()


@pytest.mark.parametrize(
    ("job_input", "word"),
    [
        (replace(JOB_INPUT, commit_sha="c0ffee"), "git rev-parse HEAD"),
        (replace(JOB_INPUT, commit_sha="z" * 40), "commit_sha"),
        (replace(JOB_INPUT, repo_url="ext::sh -c evil"), "repo_url"),
        (replace(JOB_INPUT, runs_on="no spaces"), "runs_on"),
        (replace(JOB_INPUT, workflow_path="../elsewhere"), "workflow_path"),
        (replace(JOB_INPUT, not_before="tonight"), "--not-before 'tonight'.*RFC 3339"),
        (replace(JOB_INPUT, not_before="2027-02-02T00:00:00Z"), "--not-before.*366 days"),
        (replace(JOB_INPUT, delay="an hour"), "--delay 'an hour'.*15m"),
        (replace(JOB_INPUT, delay=""), "--delay ''"),
        (replace(JOB_INPUT, delay="367d"), "--delay '367d'.*366 days"),
        (replace(JOB_INPUT, delay="999999999d"), "--delay"),
        (replace(JOB_INPUT, delay="1h", not_before="2026-01-31T22:00:00Z"), "give one of them"),
    ],
    ids=[
        "short sha",
        "no hex",
        "helper program",
        "label",
        "path outside",
        "no moment",
        "a moment too far",
        "no span",
        "empty span",
        "a span too long",
        "a span beyond all time",
        "both",
    ],
)
def test_wrong_option_is_named(job_input: EnqueueInput, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        made(job_input)


def test_advice_names_the_queue_of_the_request_class() -> None:
    settings = BrokerSettings(amqp_priorities="split")
    urgent = made(replace(JOB_INPUT, priority="critical"))
    for status, word in (
        (PublishStatus.REJECTED, "'solstice.jobs.v1.critical'"),
        (PublishStatus.UNROUTABLE, "'jobrequest.v1.critical'"),
    ):
        assert word in advice(Published(status, ""), urgent, settings)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (PublishStatus.UNROUTABLE, ["solstice.jobs", "jobrequest.v1", "topology show"]),
        (PublishStatus.REJECTED, ["solstice.jobs.v1", "orchestrator"]),
        (PublishStatus.UNKNOWN, ["--idempotency-key 00000000-0000-0000-0000-000000000001"]),
    ],
)
def test_advice_says_what_happened_and_what_to_do(status: PublishStatus, words: list[str]) -> None:
    text = advice(Published(status, "the broker's word"), made(JOB_INPUT), BrokerSettings())
    assert text.startswith(f"{status.value}: ")
    assert [word for word in [*words, "the broker's word"] if word not in text] == []


@pytest.mark.parametrize("key", ["replay:1:x", "reconcile:push:0", "schedule:x"])
def test_a_key_of_our_own_cannot_be_chosen(key: str) -> None:
    with pytest.raises(ConfigurationError, match="idempotency-key"):
        made(replace(JOB_INPUT, idempotency_key=key))
