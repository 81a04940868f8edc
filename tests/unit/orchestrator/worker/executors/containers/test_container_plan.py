"""Which container a job gets, and with which limits."""

from dataclasses import replace

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess
from solstice_orchestrator.domain.image_names import full_name, is_allowed, is_image_name
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts
from solstice_orchestrator.worker.executors.containers.container_facts import judged, read_facts
from solstice_orchestrator.worker.executors.containers.container_plan import (
    MIB,
    ContainerPlan,
    ContainerRules,
    container_plan,
    create_arguments,
    user_of,
)
from tests.builders import execution, job, job_request

RULES = ContainerRules(memory_bytes=100 * MIB, cpus=2.0)
BROKEN = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=137, step="build")
UNBEGUN = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=137)
LATE = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)


def planned(
    asks: ContainerSpec, rules: ContainerRules = RULES, *, trusted: bool = True
) -> ContainerPlan | Outcome:
    return container_plan(execution(job("true", container=asks), job_request(trusted=trusted)), rules)


def arguments(plan: ContainerPlan | Outcome, user: int | None = 1_000_007) -> list[str]:
    assert isinstance(plan, ContainerPlan)
    made = create_arguments(
        plan,
        name="c",
        image_id="sha256:1",
        user=user,
        labels={"solstice.place": "/w/1"},
        group="/g",
        directory="/w/1",
        mounts={"/workspace": "/w/1/source"},
        rlimits={"nofile": "1:1"},
    )
    return list(made)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python:3.12", "docker.io/library/python:3.12"),
        ("acme/build", "docker.io/acme/build"),
        ("ghcr.io/acme/build@sha256:" + "0" * 64, "ghcr.io/acme/build@sha256:" + "0" * 64),
        ("localhost/x:1", "localhost/x:1"),
        ("registry:5000/x", "registry:5000/x"),
    ],
)
def test_a_name_without_a_registry_means_that_of_docker(name: str, full: str) -> None:
    assert is_image_name(name)
    assert full_name(name) == full


def test_patterns_allow_images_by_their_full_names() -> None:
    patterns = ("docker.io/library/*", "ghcr.io/acme/*")
    assert is_allowed(full_name("python"), patterns)
    assert not is_allowed(full_name("evil/python"), patterns)
    assert not is_allowed("evil.example/docker.io/library/python", patterns)


def test_a_job_that_names_no_image_fails_where_there_is_no_default() -> None:
    outcome = planned(ContainerSpec())
    assert isinstance(outcome, Outcome)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.CONTAINER_REFUSED)
    assert "DEFAULT_IMAGE" in outcome.detail
    plan = planned(ContainerSpec(), replace(RULES, default_image="debian:12"))
    assert isinstance(plan, ContainerPlan)
    assert plan.image == "docker.io/library/debian:12"


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (ContainerSpec(image="ghcr.io/other/x"), "ALLOWED_IMAGES"),
        (ContainerSpec(image="debian", memory_bytes=101 * MIB), "memory"),
        (ContainerSpec(image="debian", cpus=2.5), "processors"),
    ],
)
def test_what_the_operator_does_not_allow_is_refused(asks: ContainerSpec, words: str) -> None:
    outcome = planned(asks, replace(RULES, allowed=("docker.io/library/*",)))
    assert isinstance(outcome, Outcome)
    assert outcome.reason is Reason.CONTAINER_REFUSED
    assert words in outcome.detail


def test_a_stranger_reaches_no_network_even_if_it_asks_for_one() -> None:
    asks = ContainerSpec(image="debian", network=NetworkAccess.DEFAULT)
    trusted, stranger = arguments(planned(asks)), arguments(planned(asks, trusted=False))
    assert trusted[trusted.index("--network") + 1] == "bridge"
    assert stranger[stranger.index("--network") + 1] == "none"


def test_the_limits_of_a_job_become_arguments() -> None:
    made = arguments(planned(ContainerSpec(image="debian", memory_bytes=64 * MIB, cpus=1.5)))
    for option, value in (
        ("--memory", str(64 * MIB)),
        ("--memory-swap", str(64 * MIB)),
        ("--cpus", "1.5"),
        ("--pids-limit", "4096"),
        ("--user", "1000007:1000007"),
        ("--cap-drop", "all"),
        ("--security-opt", "no-new-privileges"),
    ):
        assert made[made.index(option) + 1] == value
    assert {"--read-only", "--read-only-tmpfs=false", "--http-proxy=false", "--pull=never"} <= set(made)
    assert "--privileged" not in made


def test_without_root_a_job_is_the_orchestrators_user_in_a_namespace_of_its_own() -> None:
    made = arguments(planned(ContainerSpec(image="debian", network=NetworkAccess.DEFAULT)), user=None)
    for option, value in (
        ("--userns", "keep-id:uid=1000,gid=1000"),
        ("--user", "1000:1000"),
        ("--network", "slirp4netns"),
        ("--cap-drop", "all"),
    ):
        assert made[made.index(option) + 1] == value
    assert "--userns" not in arguments(planned(ContainerSpec(image="debian")))


def test_attempts_have_users_of_their_own() -> None:
    assert user_of("job-1-00000000") == 1_000_000
    assert user_of("job-1-000f423f") == 1_999_999
    assert user_of("job-1-ffffffff") < 2_000_000


def test_only_what_the_workers_side_knows_is_the_worlds_failure() -> None:
    plan = planned(ContainerSpec(image="debian", memory_bytes=64 * MIB))
    assert isinstance(plan, ContainerPlan)
    assert judged(BROKEN, read_facts(""), plan) == BROKEN
    unstarted = judged(BROKEN, read_facts('{"unstarted": 125}'), plan)
    assert (unstarted.state, unstarted.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
    killed = judged(BROKEN, read_facts('{"killed": 1}'), plan)
    assert (killed.state, killed.reason) == (JobState.FAILED, Reason.OUT_OF_MEMORY)
    assert "64 MiB" in killed.detail
    assert judged(BROKEN, read_facts('{"gone": true}'), plan).state is JobState.FAILED
    unlimited = judged(BROKEN, read_facts('{"unlimited": "memory"}'), plan)
    assert (unlimited.reason, "memory" in unlimited.detail) == (Reason.PROVISION_FAILED, True)
    assert judged(LATE, read_facts('{"starting": true}'), plan).reason is Reason.PROVISION_FAILED
    assert judged(LATE, read_facts('{"killed": 1}'), plan) == LATE
    assert judged(BROKEN, read_facts('{"killed'), plan) == BROKEN
    # A job that was asked to end ends its container, whose end is not the reason then.
    large = Outcome(state=JobState.FAILED, reason=Reason.OUT_OF_DISK, detail="out of disk")
    assert judged(large, read_facts('{"gone": true, "killed": 1}'), plan) == large
    done = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)
    assert judged(done, read_facts('{"killed": 1}'), plan) == done


@pytest.mark.parametrize("facts", ["", "{", "{}", '{"starting": true}'])
@pytest.mark.parametrize("code", [1, 137])
def test_what_ends_before_the_first_step_is_the_worlds_failure_also_when_nothing_was_noted(
    facts: str, code: int
) -> None:
    plan = planned(ContainerSpec(image="debian"))
    assert isinstance(plan, ContainerPlan)
    outcome = judged(replace(UNBEGUN, exit_code=code), read_facts(facts), plan)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)


def test_strangers_alone_get_a_proxy_in_place_of_a_network_unless_they_want_none() -> None:
    rules = replace(RULES, egress=AllowedHosts(hosts=parse_hosts("pypi.org")))

    def proxied(network: NetworkAccess | None, *, trusted: bool = False) -> tuple[NetworkAccess, bool]:
        plan = planned(ContainerSpec(image="a", network=network), rules, trusted=trusted)
        assert isinstance(plan, ContainerPlan)
        return plan.network, plan.egress is not None

    assert proxied(None) == proxied(NetworkAccess.DEFAULT) == (NetworkAccess.NONE, True)
    assert proxied(NetworkAccess.NONE) == proxied(NetworkAccess.SERVICES_ONLY) == (NetworkAccess.NONE, False)
    assert proxied(None, trusted=True) == (NetworkAccess.DEFAULT, False)
    plan = planned(ContainerSpec(image="a"), trusted=False)
    assert isinstance(plan, ContainerPlan)
    assert plan.egress is None
    # Without root it is the same: a job without a network has no slirp4netns.
    assert "none" in arguments(planned(ContainerSpec(image="a"), rules, trusted=False), user=None)
