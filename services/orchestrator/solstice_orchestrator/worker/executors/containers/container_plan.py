"""Decide which containers a job gets, and the arguments of podman that make its own. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.messages import Source
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import (
    ContainerSpec,
    NetworkAccess,
    PullPolicy,
    ServiceSpec,
)
from solstice_orchestrator.domain.image_names import full_name, is_allowed, is_image_name
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts
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
SERVICE_ADDRESS: Final = "127.0.0.1"
"""The services of a job are in its network."""
MIB: Final = 1024 * 1024
NO_EGRESS: Final = AllowedHosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRules:
    """The operator's settings for containers."""

    default_image: str = ""
    """Of jobs that name none; empty: they fail."""
    allowed: tuple[str, ...] = ("*",)
    """Patterns of full image names."""
    pull: PullPolicy = PullPolicy.MISSING
    network: NetworkAccess = NetworkAccess.DEFAULT
    """Of trusted jobs that name none."""
    egress: AllowedHosts = NO_EGRESS
    """What untrusted jobs may reach, unless they name no network."""
    memory_bytes: int = 2048 * MIB
    """What a job gets, and the most that it may ask for."""
    cpus: float = 2.0
    """The same for processors."""
    processes: int = 4096
    services: int = 5
    """The most services of a job. Each has limits of its own like those of a job."""
    ready_seconds: float = 120.0
    """How long a service may take that does not say it."""
    logins: tuple[LoginRule, ...] = ()
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when they do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """An image, who fetches it, and the limits of its container."""

    image: str
    """Its full name."""
    pull: PullPolicy
    login: LoginRule | None
    """What fetches the image."""
    is_trusted: bool
    memory_bytes: int
    cpus: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """The container of one service."""

    spec: ServiceSpec
    container: ImagePlan
    ready_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan(ImagePlan):
    """The container of one job."""

    network: NetworkAccess
    egress: AllowedHosts | None = None
    """What it reaches through a proxy, without a network of its own; None: it has no proxy."""
    services: tuple[ServicePlan, ...] = ()


def container_plan(execution: Execution, rules: ContainerRules) -> ContainerPlan | Outcome:
    """Return the job's container, or its failure if it may not have one."""
    requested = execution.spec.container
    if not (written := requested.image or rules.default_image):
        return refused("the job names no image, and this worker has no DEFAULT_IMAGE")
    if len(requested.services) > rules.services:
        return refused(
            f"the job asks for {len(requested.services)} services; a job here may have {rules.services} (CONTAINER_SERVICES)"
        )
    own = _image_plan(execution, rules, "the job", written, requested)
    if isinstance(own, Outcome):
        return own
    services = []
    for each in requested.services:
        who = f"the service {each.name!r}"
        container = _image_plan(execution, rules, who, each.image, each)
        if isinstance(container, Outcome):
            return container
        ready_seconds = each.ready_seconds or rules.ready_seconds
        services.append(ServicePlan(spec=each, container=container, ready_seconds=ready_seconds))
    # Code of strangers gets no network; its workflow file can only do without the proxy that it has in place of one.
    network = (requested.network or rules.network) if own.is_trusted else NetworkAccess.NONE
    wants_hosts = requested.network in {None, NetworkAccess.DEFAULT}
    egress = rules.egress if rules.egress.hosts and wants_hosts and not own.is_trusted else None
    if services and network is NetworkAccess.NONE:
        network = NetworkAccess.SERVICES_ONLY
    return ContainerPlan(
        image=own.image,
        pull=own.pull,
        login=own.login,
        is_trusted=own.is_trusted,
        memory_bytes=own.memory_bytes,
        cpus=own.cpus,
        processes=own.processes,
        network=network,
        egress=egress,
        services=tuple(services),
    )


def _image_plan(
    execution: Execution,
    rules: ContainerRules,
    who: str,
    written: str,
    requested: ContainerSpec | ServiceSpec,
) -> ImagePlan | Outcome:
    """Return a container that `who` asks for, or why it is not to be had."""
    image = full_name(written)
    if not is_image_name(written) or not is_allowed(image, rules.allowed):
        return refused(f"the image {image} is not among the ALLOWED_IMAGES of this worker")
    if (requested.memory_bytes or 0) > rules.memory_bytes:
        return refused(
            f"{who} asks for {requested.memory_bytes} bytes of memory; a job here may have {rules.memory_bytes}"
        )
    if (requested.cpus or 0) > rules.cpus:
        return refused(f"{who} asks for {requested.cpus:g} processors; a job here may have {rules.cpus:g}")
    trusted = is_trusted(execution.request, rules.v1_trust)
    login = login_of(image, rules.logins, execution.request.repo_url, is_trusted=trusted)
    if isinstance(login, LoginRefused):
        # Also where the image is here already: another job may have fetched it.
        return refused(f"the image {image} is for other repositories, or for trusted runs alone")
    return ImagePlan(
        image=image,
        pull=requested.pull or rules.pull,
        login=login,
        is_trusted=trusted,
        memory_bytes=requested.memory_bytes or rules.memory_bytes,
        cpus=requested.cpus or rules.cpus,
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
    directory: str,
    mounts: Mapping[str, str],
    rlimits: Mapping[str, str],
) -> Sequence[str]:
    """Return the arguments of `podman create`; `mounts` are directories by their place in the container.

    Podman names processes in files of `directory`.

    Without a `user` the job is the user of the orchestrator, which is not root.
    """
    inside = ROOTLESS_USER if user is None else user
    networks = "bridge" if user is not None else "slirp4netns"
    network = networks if plan.network is NetworkAccess.DEFAULT else "none"
    return (
        *("create", "--name", name, "--pull=never", "--log-driver", "passthrough", "--interactive"),
        *(f"--label={key}={value}" for key, value in labels.items()),
        *("--pidfile", f"{directory}/pid", "--conmon-pidfile", f"{directory}/monitor"),
        *("--cgroup-parent", group),
        *(("--userns", f"keep-id:uid={inside},gid={inside}") if user is None else ()),
        *("--user", f"{inside}:{inside}", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
        *("--read-only", "--read-only-tmpfs=false", "--image-volume", "ignore", "--no-healthcheck"),
        *("--systemd=false", "--sdnotify=ignore", "--http-proxy=false", "--restart=no"),
        *("--network", network, "--hostname", "ci"),
        # A service has no privilege in the network of the job: it may listen at port 80 without one.
        *(("--sysctl", "net.ipv4.ip_unprivileged_port_start=0") if plan.services else ()),
        *(f"--add-host={service.spec.name}:{SERVICE_ADDRESS}" for service in plan.services),
        *limit_arguments(plan, rlimits),
        *(f"--volume={path}:{target}" for target, path in mounts.items()),
        *("--workdir", SOURCE, "--entrypoint", '["/bin/sh", "-s"]', image_id),
    )


def limit_arguments(plan: ImagePlan, rlimits: Mapping[str, str]) -> Sequence[str]:
    """Return the arguments that limit a container."""
    return (
        *("--memory", str(plan.memory_bytes), "--memory-swap", str(plan.memory_bytes)),
        *("--cpus", f"{plan.cpus:g}", "--pids-limit", str(plan.processes)),
        *(f"--ulimit={limit}={value}" for limit, value in rlimits.items()),
    )


def limits_of(plan: ImagePlan) -> dict[str, float]:
    """Return the limits that the kernel must have once the container runs."""
    return {"memory": plan.memory_bytes, "pids": plan.processes, "cpu": plan.cpus}
