"""The store reads the job specs that it wrote, also those of older versions."""

from dataclasses import asdict

import orjson
import pytest

from solstice_common.messages import REMEMBERED_BYTES, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.checkout_spec import ChangeCommit, CheckoutSpec, Submodules
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.domain.image_names import is_image_name
from solstice_orchestrator.domain.jobs import (
    Concurrency,
    GroupMode,
    JobCondition,
    JobSpec,
    Reason,
    StepCondition,
    StepSpec,
)
from solstice_orchestrator.scheduling.order import PRIORITY_ORDER
from solstice_orchestrator.store.records.changes import ChunkRow
from solstice_orchestrator.store.records.rows import (
    attempt_view,
    chunk_of,
    decode_spec,
    encode_spec,
    job_view,
    key,
    log_rows,
    request_fields,
    run_view,
)
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from tests.builders import job

FULL = job(
    StepSpec(
        name="unit tests", run="pytest", env={"SEED": "7"}, timeout_seconds=90.0, secrets=("DEPLOY_KEY",)
    ),
    needs=("lint",),
    env={"LEVEL": "debug"},
    priority=Priority.HIGH,
    condition=JobCondition.ALWAYS,
    retries=2,
    no_output_seconds=600.0,
    concurrency=Concurrency(group="deploy", mode=GroupMode.CANCEL),
    matrix={"os": "linux", "python": "3.12"},
    secrets=("NPM_TOKEN",),
    checkout=CheckoutSpec(
        depth=0, tags=True, submodules=Submodules.RECURSIVE, lfs=True, ref=ChangeCommit.MERGE
    ),
)
NEW_FIELDS = ("condition", "retries", "no_output_seconds", "concurrency", "matrix", "secrets", "checkout")


JOB_ROW = {
    "job_id": "j",
    "run_id": "r",
    "name": "test",
    "state": "backoff",
    "reason": "agent_lost",
    "detail": "held by quay",
    "runs_on": "linux",
    "needs": '["lint"]',
    "priority": PRIORITY_ORDER.index(Priority.HIGH),
    "attempt": 4,
    "created_at": 10.0,
    "started_at": 11.0,
    "finished_at": 12.0,
    "retry_at": 13.0,
    "exit_code": 5,
    "step": "make",
    "worker_id": "w",
    "retries": 6,
    "retried": 7,
    "sequence": 8,
}
RUN_ROW = {
    "run_id": "r",
    "state": "running",
    "detail": "of it",
    "created_at": 10.0,
    "started_at": 11.0,
    "finished_at": 12.0,
    "rerun_of": "q",
}
OF_REQUEST = {
    "request_id": "a",
    "source": "github",
    "repo_url": "https://forge.example/river/otter.git",
    "repo_full_name": "river/otter",
    "commit_sha": "c" * 40,
    "ref": "refs/heads/main",
    "event": "push",
    "change_number": 3,
    "sender": "mira",
    "source_name": "forge",
    "delivery_id": "d",
}


def test_steps_with_conditions_are_stored_so_that_an_older_orchestrator_fails_the_job() -> None:
    spec = job(
        StepSpec(name="logs", run="cat log", when=StepCondition.FAILED, condition="failed", may_fail=True)
    )
    assert decode_spec(encode_spec(spec)) == spec
    (step,) = orjson.loads(encode_spec(spec))["steps"]
    assert step["run"].endswith("exit 1")


def test_a_job_is_shown_with_all_that_its_row_says() -> None:
    read = {
        "state": JobState.BACKOFF,
        "reason": Reason.AGENT_LOST,
        "needs": ("lint",),
        "priority": Priority.HIGH,
    }
    assert asdict(job_view(JOB_ROW)) == JOB_ROW | read


def test_an_attempt_is_shown_with_all_that_its_row_says() -> None:
    names = ("worker_id", "state", "reason", "started_at", "finished_at", "exit_code", "step", "detail")
    row = {
        "number": 4,
        "image": "debian:12",
        "provisioning_seconds": 1.5,
        **{name: JOB_ROW[name] for name in names},
    }
    assert asdict(attempt_view(row)) == row
    assert isinstance(attempt_view(row).reason, Reason)


def test_a_run_is_shown_with_all_that_its_row_and_its_request_say() -> None:
    request = OF_REQUEST | {"not_before": "1970-01-01T00:00:20Z"}
    view = run_view(RUN_ROW | {"request": orjson.dumps(request)})
    assert asdict(view) == RUN_ROW | OF_REQUEST | {"not_before": 20.0}
    assert isinstance(view.state, RunState)


def test_what_a_request_does_not_say_is_not_known_of_its_run() -> None:
    fields = ("request_id", "source", "repo_url", "commit_sha")
    request = {name: OF_REQUEST[name] for name in fields}
    view = asdict(run_view(RUN_ROW | {"request": orjson.dumps(request)}))
    assert {name for name, value in view.items() if value is None} == {*OF_REQUEST, "not_before"} - {*fields}


def test_a_request_with_a_number_beyond_every_float_is_read() -> None:
    assert request_fields(b'{"n": 1%s}' % (b"0" * 400)) == {"n": 10**400}


@pytest.mark.parametrize(("stored", "kind"), [(None, ChunkKind.OUTPUT), ("mark", ChunkKind.MARK)])
def test_a_chunk_of_the_log_has_the_kind_that_was_stored(stored: str | None, kind: ChunkKind) -> None:
    chunk = chunk_of({"sequence": 3, "at": 1.5, "data": b"x", "kind": stored})
    assert chunk == LogChunk(sequence=3, at=1.5, data=b"x", kind=kind)
    assert log_rows("job", 2, [chunk], "db") == [ChunkRow("job", 2, 3, 1.5, b"x", stored, "db")]


@pytest.mark.parametrize(
    "spec",
    [FULL, job("true"), job("true", checkout=None)],
    ids=["everything said", "nothing said", "no checkout"],
)
def test_a_spec_is_read_as_it_was_written(spec: JobSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec


def test_small_specs_are_read_once_and_large_ones_each_time() -> None:
    small, large = job("make"), job("make " + "x" * REMEMBERED_BYTES)
    assert decode_spec(encode_spec(small)) is decode_spec(encode_spec(small))
    assert decode_spec(encode_spec(large)) is not decode_spec(encode_spec(large))


def test_a_key_is_the_one_that_older_rows_have() -> None:
    assert key("r-1").hex() == "58696c3c0270c4aafd3e4a6306b9b769"


def test_a_row_of_an_older_version_has_the_defaults_of_what_it_did_not_know() -> None:
    old = {name: value for name, value in orjson.loads(encode_spec(FULL)).items() if name not in NEW_FIELDS}
    assert decode_spec(orjson.dumps(old)) == job(
        *FULL.steps, needs=("lint",), env={"LEVEL": "debug"}, priority=Priority.HIGH
    )


def test_an_older_orchestrator_finds_no_image_that_could_run_without_the_services() -> None:
    # It reads `container` alone: a name that is no image makes it refuse the job, and shows the sentence.
    for container in (
        ContainerSpec(image="debian:12", services=(ServiceSpec(name="db", image="postgres:17"),)),
        ContainerSpec(image="debian:12", network=NetworkAccess.SERVICES_ONLY),
    ):
        fields = orjson.loads(encode_spec(job("true", container=container)))
        seen = ContainerSpec(**fields["container"])
        assert not is_image_name(str(seen.image))
        assert "update this one" in str(seen.image)
        assert decode_spec(orjson.dumps(fields)).container == container


def test_the_container_of_a_job_without_services_is_stored_as_before() -> None:
    fields = orjson.loads(encode_spec(job("true", container=ContainerSpec(image="debian:12"))))
    assert fields["container"] == {
        "image": "debian:12",
        "pull": None,
        "network": None,
        "memory_bytes": None,
        "cpus": None,
    }
    assert "container_with_services" not in fields
