"""What the store writes of a job's spec it reads again, also when an older version wrote it."""

import orjson
import pytest

from solstice_common.messages import Priority
from solstice_orchestrator.domain.jobs import Concurrency, GroupMode, JobCondition, JobSpec, StepSpec
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
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
)
NEW_FIELDS = ("condition", "retries", "no_output_seconds", "concurrency", "matrix", "secrets")


@pytest.mark.parametrize("spec", [FULL, job("true")], ids=["everything said", "nothing said"])
def test_a_spec_is_read_as_it_was_written(spec: JobSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec


def test_a_row_of_an_older_version_has_the_defaults_of_what_it_did_not_know() -> None:
    old = {name: value for name, value in orjson.loads(encode_spec(FULL)).items() if name not in NEW_FIELDS}
    assert decode_spec(orjson.dumps(old)) == job(
        *FULL.steps, needs=("lint",), env={"LEVEL": "debug"}, priority=Priority.HIGH
    )
