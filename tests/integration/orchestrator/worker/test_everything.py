"""The example with every construct of a workflow file is read, planned and run."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ANY_CONTAINER
from solstice_orchestrator.domain.jobs import JobSpec, Outcome
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.workflow.conditions.facts import ChangedPaths
from solstice_orchestrator.workflow.job_plan import (
    PlannedJobs,
    PlanningRules,
    WorkflowWithPaths,
    plan_jobs,
)
from solstice_orchestrator.workflow.kdl import KdlNode, read
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.builders import execution, job_request
from tests.executor_setups import open_executor
from tests.repositories import Repository

ROOT = Path(__file__).parents[4] / "docs" / "examples" / "everything"
PATH = ".solstice/workflow.kdl"
FILES = {str(file.relative_to(ROOT)): file.read_text() for file in ROOT.rglob("*") if file.is_file()}
PLACES = {
    "": "{}; job a {{ step run=x }}",
    "on": "on {{ push; {} }}; job a {{ step run=x }}",
    "input": "input a {{ {} }}; job a {{ step run=x }}",
    "job": "job a {{ step run=x; {} }}",
    "step": "job a {{ step run=x {{ {} }} }}",
    "service": "job a {{ step run=x; service b image=c {{ {} }} }}",
}
"""A file for each kind of block, with a gap for a node that is not known there. Nodes of `defaults` are those of a job."""
WITH_PROPERTIES = {
    "input": "input a {}",
    "defaults": "defaults {}",
    "push": "on {{ push {} }}",
    "job": "job b {} {{ step run=x }}",
    "step": "job b {{ step run=x {} }}",
    "checkout": "job b {{ checkout {}; step run=x }}",
    "image": "job b {{ image c {}; step run=x }}",
    "service": "job b {{ service c image=d {}; step run=x }}",
    "artifact": "job b {{ artifact c path=d {}; step run=x }}",
    "artifacts": "job b {{ artifacts c {}; step run=x }}",
    "concurrency": "concurrency c {}",
}


def known_by(text: str) -> set[str]:
    """What the reader says that it knows, in the place of `zz`."""
    with pytest.raises(InvalidWorkflow) as refused:
        parse_workflow(text.encode(), default_runs_on="linux")
    return set(re.findall(r"'([a-z-]+)'", str(refused.value).partition("known: ")[2]))


def below(nodes: tuple[KdlNode, ...], name: str) -> Iterator[KdlNode]:
    for node in nodes:
        if node.name == name:
            yield node
        yield from below(node.children, name)


def test_every_construct_is_in_the_example() -> None:
    nodes = read(FILES[PATH])
    top = {node.name for node in nodes}
    for place, text in PLACES.items():
        known = known_by(text.format("zz"))
        assert known
        found = {child.name for node in below(nodes, place) for child in node.children} if place else top
        assert known - found == set(), place
    for name, text in WITH_PROPERTIES.items():
        known = known_by(f"{text.format('zz=1')}; job a {{ step run=x }}")
        found = {item.name for node in below(nodes, name) for item in node.properties}
        found |= {child.name for node in below(nodes, name) for child in node.children}
        assert known - found == set(), name


async def run(spec: JobSpec, request: Any, setup: Any, attempts: list[ArtifactRecord]) -> tuple[Outcome, str]:
    output: list[bytes] = []

    async def log(data: bytes) -> None:
        output.append(data)

    async def record(artifact: ArtifactRecord, _most_bytes: int) -> ArtifactAnswer:
        attempts.append(artifact)
        return ArtifactAnswer.STORED

    attempt = replace(execution(spec, request), record_artifact=record)
    outcome = await setup.executor.run(attempt, log, asyncio.Event())
    return outcome, b"".join(output).decode()


async def test_the_example_is_planned_and_runs(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "example")
    request = job_request(
        repo_url=repository.url,
        commit_sha=repository.commit(FILES),
        default_branch="main",
        repo_full_name="a/b",
    )
    open_plan = plan_jobs(request, {PATH: FILES[PATH].encode()}, PlanningRules())
    assert isinstance(open_plan, WorkflowWithPaths)
    plan = open_plan.planned(ChangedPaths(paths={"src/hello.sh"}))
    assert isinstance(plan, PlannedJobs)
    chosen = [job for job in plan.jobs if not job.unmet and not job.later]
    assert {job.name for job in plan.jobs} - {job.name for job in chosen} == {"announce", "release"}
    logs, records = dict[str, str](), list[ArtifactRecord]()
    async with open_executor("process", tmp_path, None) as setup:
        for spec in chosen:
            # The executor of processes gives no sizes and no image.
            outcome, logs[spec.name] = await run(
                replace(spec, container=ANY_CONTAINER), request, setup, records
            )
            assert outcome.state is JobState.SUCCEEDED, (spec.name, outcome, logs[spec.name])
    assert "$ wc hello.txt" in logs["lines"]
    assert "version 1\n" in logs["build"]
    assert "exit code 3; the job goes on" in logs["build"]
    assert "- upload the logs: not run" in logs["build"]
    assert "stopped\n" in logs["build"]
    assert "3: 2 of 2\n" in logs["test-linux-3-2"]
    assert [(record.name, record.files) for record in records] == [("hello", 1)]
