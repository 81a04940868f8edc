"""What a podman must show before jobs run in its containers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, ServiceSpec
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.containers import podman_launcher
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import PodmanLauncher, open_podman
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.builders import execution, job, job_request

CONTROLLERS = ["cpu", "memory", "pids"]
MAPPED = {"uidmap": [{"container_id": 0, "size": 1}, {"container_id": 1, "size": 65536}]}


def opened(folder: Path, **host: Any) -> PodmanLauncher:
    """Open a podman that says so about this machine."""
    facts = {
        "host": {"cgroupControllers": CONTROLLERS, "security": {"seccompEnabled": True}, "idMappings": MAPPED}
        | host,
        "store": {"graphRoot": "/store", "graphDriverName": "overlay"},
    }
    (folder / "facts").write_text(json.dumps(facts))
    (folder / "podman").write_text(f"#!/bin/sh\nexec cat {folder}/facts\n")
    (folder / "podman").chmod(0o755)
    return asyncio.run(open_podman({"PATH": f"{folder}:/usr/bin:/bin"}, ContainerRules()))


@pytest.fixture
def without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(podman_launcher, "_delegated", lambda: "/user")


@pytest.mark.parametrize(
    ("host", "missing"),
    [
        ({"cgroupControllers": ["cpu"]}, "without the control groups memory, pids a job has no limits"),
        ({"cgroupControllers": None}, "without the control groups cpu, memory, pids"),
        ({"security": {}}, "built without seccomp"),
    ],
    ids=["two missing", "all missing", "no seccomp"],
)
def test_a_machine_that_cannot_limit_or_isolate_is_refused(
    tmp_path: Path, host: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ConfigurationError, match=missing):
        opened(tmp_path, **host)


@pytest.mark.usefixtures("without_root")
@pytest.mark.parametrize("mappings", [None, {"uidmap": [{"size": 1}]}], ids=["none", "its own user alone"])
def test_without_root_the_user_needs_users_below_it(tmp_path: Path, mappings: object) -> None:
    with pytest.raises(ConfigurationError, match=r"needs users below it \(subuid\(5\), subgid\(5\)\)"):
        opened(tmp_path, idMappings=mappings)


@pytest.mark.usefixtures("without_root")
def test_without_root_a_job_with_services_is_told_where_it_can_run(tmp_path: Path) -> None:
    launcher = opened(tmp_path)
    services = (ServiceSpec(name="db", image="postgres:17"),)
    spec = job("true", container=ContainerSpec(image="debian", services=services))

    async def launched() -> object:
        async with (
            open_workspaces(tmp_path / "work") as workspaces,
            workspaces.attempt("job-1") as place,
            launcher.launch(execution(spec, job_request()), place) as launch,
        ):
            return launch

    outcome = asyncio.run(launched())
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.CONTAINER_REFUSED)
    assert "this worker runs without root: let it run where a worker is root" in outcome.detail
