"""Decide which container a job gets, and the arguments of podman that make it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.messages import Source
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import NetworkAccess, PullPolicy
from solstice_orchestrator.domain.image_names import full_name, is_allowed, is_image_name
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted
from solstice_orchestrator.worker.executors.containers.registry_logins import (
    LoginRefused,
    LoginRule,
    login_of,
)
from solstice_orchestrator.worker.executors.protocol import Execution

SOURCE: Final = "/workspace"
HOME: Final = "/home/ci"
TEMPORARY: Final = "/tmp"  # noqa: S108  the container's own, which is a directory of the workspace
SCRIPTS: Final = "/run/solstice"
FIRST_USER: Final = 1_000_000
"""The users of jobs: none that a system gives to people or services. Each attempt has its own, and a group like it."""
USERS: Final = 1_000_000
"""Few formats of archives know larger numbers than both together."""
ROOTLESS_USER: Final = 1000
"""The user of jobs, in a namespace of users where it is the orchestrator's own user."""
LABEL: Final = "solstice.place"
"""Names the directory of the orchestrator to which a container belongs."""
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRules:
    """The operator's settings for containers."""

    default_image: str = ""
    """Of jobs that name none; empty: they fail."""
    allowed: tuple[str, ...] = ("*",)
    """Patterns of full image names."""
    pull: PullPolicy = PullPolicy.MISSING
    network: NetworkAccess = NetworkAccess.DEFAULT
    memory_bytes: int = 2048 * MIB
    """What a job gets, and the most that it may ask for."""
    cpus: float = 2.0
    """The same for processors."""
    processes: int = 4096
    logins: tuple[LoginRule, ...] = ()
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when they do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """The container of one job."""

    image: str
    """Its full name."""
    pull: PullPolicy
    login: LoginRule | None
    """What fetches the image."""
    is_trusted: bool
    network: NetworkAccess
    memory_bytes: int
    cpus: float
    processes: int


def container_plan(execution: Execution, rules: ContainerRules) -> ContainerPlan | Outcome:
    """Return the job's container, or its failure if it may not have one."""
    wanted = execution.spec.container
    written = wanted.image or rules.default_image
    if not written:
        return refused("the job names no image, and this worker has no DEFAULT_IMAGE")
    image = full_name(written)
    if not is_image_name(written) or not is_allowed(image, rules.allowed):
        return refused(f"the image {image} is not among the ALLOWED_IMAGES of this worker")
    if (wanted.memory_bytes or 0) > rules.memory_bytes:
        return refused(
            f"the job asks for {wanted.memory_bytes} bytes of memory; a job here may have {rules.memory_bytes}"
        )
    if (wanted.cpus or 0) > rules.cpus:
        return refused(f"the job asks for {wanted.cpus:g} processors; a job here may have {rules.cpus:g}")
    trusted = is_trusted(execution.request, rules.v1_trust)
    login = login_of(image, rules.logins, execution.request.repo_url, is_trusted=trusted)
    if isinstance(login, LoginRefused):
        # Also where the image is here already: another job may have fetched it.
        return refused(f"the image {image} is for other repositories, or for trusted runs alone")
    return ContainerPlan(
        image=image,
        pull=wanted.pull or rules.pull,
        login=login,
        is_trusted=trusted,
        # Code of strangers reaches no network; its workflow file cannot change that.
        network=(wanted.network or rules.network) if trusted else NetworkAccess.NONE,
        memory_bytes=wanted.memory_bytes or rules.memory_bytes,
        cpus=wanted.cpus or rules.cpus,
        processes=rules.processes,
    )


def user_of(attempt: str) -> int:
    """Return the user of an attempt with this name, which ends with a random number."""
    return FIRST_USER + int(attempt.rpartition("-")[2], 16) % USERS


def refused(detail: str) -> Outcome:
    """Return the failure of a job whose container is not to be had here."""
    return Outcome(state=JobState.FAILED, reason=Reason.CONTAINER_REFUSED, detail=detail)


def create_arguments(
    plan: ContainerPlan,
    *,
    name: str,
    image_id: str,
    user: int | None,
    labels: Mapping[str, str],
    group: str,
    pid_file: str,
    mounts: Mapping[str, str],
    rlimits: Mapping[str, str],
) -> Sequence[str]:
    """Return the arguments of `podman create`; `mounts` are directories by their place in the container.

    Without a `user` the job is the user of the orchestrator, which is not root.
    """
    inside = ROOTLESS_USER if user is None else user
    networks = "bridge" if user is not None else "slirp4netns"
    network = "none" if plan.network is NetworkAccess.NONE else networks
    return (
        *("create", "--name", name, "--pull=never", "--log-driver", "passthrough", "--interactive"),
        *(f"--label={key}={value}" for key, value in labels.items()),
        *("--pidfile", pid_file, "--cgroup-parent", group),
        *(("--userns", f"keep-id:uid={inside},gid={inside}") if user is None else ()),
        *("--user", f"{inside}:{inside}", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
        *("--read-only", "--read-only-tmpfs=false", "--image-volume", "ignore", "--no-healthcheck"),
        *("--systemd=false", "--sdnotify=ignore", "--http-proxy=false", "--restart=no"),
        *("--network", network, "--hostname", "ci"),
        *("--memory", str(plan.memory_bytes), "--memory-swap", str(plan.memory_bytes)),
        *("--cpus", f"{plan.cpus:g}", "--pids-limit", str(plan.processes)),
        *(f"--ulimit={limit}={value}" for limit, value in rlimits.items()),
        *(f"--volume={directory}:{target}" for target, directory in mounts.items()),
        *("--workdir", SOURCE, "--entrypoint", '["/bin/sh", "-s"]', image_id),
    )
