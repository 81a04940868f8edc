"""Which containers services get, and whose failure it is when one has none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes import container_services, container_step
from solstice_orchestrator.worker.executors.containers import podman
from solstice_orchestrator.worker.executors.containers.container_facts import ContainerFacts, judged
from solstice_orchestrator.worker.executors.containers.container_plan import (
    MIB,
    ContainerPlan,
    ContainerRules,
    container_plan,
)
from solstice_orchestrator.worker.executors.containers.service_plan import (
    CAPABILITIES,
    service_arguments,
    services_file,
    storage_in,
)
from solstice_orchestrator.worker.executors.containers.services import start_seconds
from tests.builders import execution, job, job_request

RULES = ContainerRules(memory_bytes=100 * MIB, cpus=2.0, services=1)
DB = ServiceSpec(name="db", image="postgres:17", env={"A": "b=c\n"}, memory_bytes=64 * MIB)
FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=1, step="build")


def planned(
    *services: ServiceSpec, rules: ContainerRules = RULES, trusted: bool = True, **asks: Any
) -> ContainerPlan | Outcome:
    spec = ContainerSpec(image="debian", services=services, **asks)
    return container_plan(execution(job("true", container=spec), job_request(trusted=trusted)), rules)


def plan(*services: ServiceSpec, **asks: Any) -> ContainerPlan:
    found = planned(*services, **asks)
    assert isinstance(found, ContainerPlan)
    return found


def test_a_service_has_limits_of_its_own_and_few_capabilities() -> None:
    (service,) = plan(DB).services
    made = service_arguments(
        service,
        name="c-db",
        network_of="c",
        image_id="sha256:1",
        labels={"solstice.place": "/w/1"},
        group="/g",
        directory="/w/1/services/db",
        rlimits={"nofile": "1:1"},
    )
    for option, value in (
        ("--memory", str(64 * MIB)),
        ("--memory-swap", str(64 * MIB)),
        ("--cpus", "2"),
        ("--pids-limit", "4096"),
        ("--network", "container:c"),
        ("--cap-drop", "all"),
        ("--security-opt", "no-new-privileges"),
        ("--cgroup-parent", "/g"),
    ):
        assert made[made.index(option) + 1] == value
    assert f"--cap-add={','.join(CAPABILITIES)}" in made
    assert "--env=A=b=c\n" in made
    assert not [word for word in made if word.startswith(("--volume", "--privileged", "--device"))]


@pytest.mark.parametrize(
    ("services", "words"),
    [
        ((DB, replace(DB, name="other")), "2 services; a job here may have 1"),
        ((replace(DB, image="evil.example/x"),), "ALLOWED_IMAGES"),
        ((replace(DB, memory_bytes=101 * MIB),), "the service 'db' asks for"),
        ((replace(DB, cpus=3.0),), "the service 'db' asks for 3 processors"),
    ],
)
def test_what_the_operator_does_not_allow_a_service_is_refused(
    services: tuple[ServiceSpec, ...], words: str
) -> None:
    outcome = planned(*services, rules=replace(RULES, allowed=("docker.io/library/*",)))
    assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.CONTAINER_REFUSED
    assert words in outcome.detail


@pytest.mark.parametrize(
    ("operator", "written", "trusted", "services", "reached"),
    [
        (NetworkAccess.DEFAULT, None, True, (DB,), NetworkAccess.DEFAULT),
        (NetworkAccess.NONE, None, True, (DB,), NetworkAccess.SERVICES_ONLY),
        (NetworkAccess.NONE, None, True, (), NetworkAccess.NONE),
        (NetworkAccess.DEFAULT, NetworkAccess.DEFAULT, False, (DB,), NetworkAccess.SERVICES_ONLY),
        (NetworkAccess.DEFAULT, NetworkAccess.DEFAULT, False, (), NetworkAccess.NONE),
        (NetworkAccess.DEFAULT, NetworkAccess.SERVICES_ONLY, True, (DB,), NetworkAccess.SERVICES_ONLY),
    ],
)
def test_a_job_reaches_its_services_and_a_stranger_nothing_else(
    operator: NetworkAccess,
    written: NetworkAccess | None,
    trusted: bool,
    services: tuple[ServiceSpec, ...],
    reached: NetworkAccess,
) -> None:
    found = plan(*services, rules=replace(RULES, network=operator), trusted=trusted, network=written)
    assert found.network is reached
    # Where it has neighbours, they are kept from its services.
    assert services_file(found, "c")["closed"] == (reached is NetworkAccess.DEFAULT)


@pytest.mark.parametrize(
    ("facts", "tail", "reason"),
    [
        (ContainerFacts(service="db", died=1), "", Reason.SERVICE_DIED),
        (ContainerFacts(service="db", unready=2.0), "", Reason.SERVICE_NOT_READY),
        (
            ContainerFacts(service="db", unstarted=127),
            "executable file `x` not found in $PATH",
            Reason.CONTAINER_REFUSED,
        ),
        (
            ContainerFacts(service="db", unstarted=126),
            'exec: "/run.sh": permission denied: OCI permission denied',
            Reason.CONTAINER_REFUSED,
        ),
        (
            ContainerFacts(service="db", unstarted=126),
            "mkdir /var/lib/x: permission denied: OCI permission denied",
            Reason.PROVISION_FAILED,
        ),
        (ContainerFacts(service="db", unstarted=126), "no space left on device", Reason.PROVISION_FAILED),
        (ContainerFacts(service="db", unlimited="pids"), "", Reason.PROVISION_FAILED),
        (ContainerFacts(unclosed="iptables"), "", Reason.PROVISION_FAILED),
    ],
)
def test_whose_failure_a_service_is(facts: ContainerFacts, tail: str, reason: Reason) -> None:
    outcome = judged(FAILED, facts, plan(DB), {"db": tail})
    assert outcome.reason is reason
    assert (outcome.state is JobState.ERRORED) == (reason is Reason.PROVISION_FAILED)
    assert "'db'" in outcome.detail or facts.unclosed


@pytest.mark.parametrize(
    ("code", "facts", "reason"),
    [
        # The end of the process that starts them, by a signal: two ways to see it.
        (137, ContainerFacts(), Reason.PROVISION_FAILED),
        (247, ContainerFacts(), Reason.PROVISION_FAILED),
        # A service may have filled the disk, on which nothing could be noted then.
        (1, ContainerFacts(), Reason.STEP_FAILED),
        (137, ContainerFacts(service="db", died=2), Reason.SERVICE_DIED),
        (137, ContainerFacts(service="db", unready=1.0), Reason.SERVICE_NOT_READY),
    ],
)
def test_services_that_never_let_the_steps_begin_cause_no_failure_of_the_world(
    code: int, facts: ContainerFacts, reason: Reason
) -> None:
    assert judged(replace(FAILED, exit_code=code, step=None), facts, plan(DB)).reason is reason


def test_the_start_of_containers_has_time_for_each_of_them() -> None:
    alone, beside = start_seconds(plan()), start_seconds(plan(replace(DB, ready_seconds=77.0)))
    assert alone > container_step.START_SECONDS
    assert beside - alone == container_services.START_SECONDS + 77.0
    # A start takes podman as long as its other calls do.
    assert container_step.START_SECONDS == container_services.START_SECONDS == podman.SECONDS


def test_a_service_writes_in_its_volumes_and_in_its_layer_if_there_is_one() -> None:
    volume = {"Type": "volume", "Source": "/store/volumes/1/_data", "Destination": "/data"}
    layer = {
        "Name": "overlay",
        "Data": {"UpperDir": "/store/overlay/1/diff", "WorkDir": "/store/overlay/1/work"},
    }
    found = storage_in(
        [
            {"Mounts": [volume], "GraphDriver": layer},
            {"Mounts": [], "GraphDriver": {"Name": "vfs", "Data": None}},
        ]
    )
    assert found == (Path("/store/volumes/1/_data"), Path("/store/overlay/1/diff"))
