"""All settings of `orchestrator run`."""

import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from solstice_common.settings import (
    AccessSettings,
    BrokerSettings,
    HttpSettings,
    LogSettings,
    VerifySettings,
    WebAddress,
    state_directory,
)
from solstice_common.tracing.trace_settings import TraceSettings
from solstice_common.values.repo_urls import REPO_URL_SCHEMES
from solstice_orchestrator.domain.container_spec import NetworkAccess, PullPolicy
from solstice_orchestrator.domain.image_names import is_image_name
from solstice_orchestrator.domain.label_map import parse_executors, parse_image_folders
from solstice_orchestrator.domain.trust import parse_sources
from solstice_orchestrator.processes.egress.allowed_hosts import parse_hosts, parse_networks
from solstice_orchestrator.scheduling.capacity import parse_slots
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.governor import parse_limits
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates, parse_rates
from solstice_orchestrator.settings.artifact_settings import ArtifactSettings
from solstice_orchestrator.settings.cache_settings import CacheSettings
from solstice_orchestrator.settings.flow_settings import FlowSettings
from solstice_orchestrator.settings.retry_settings import RetrySettings
from solstice_orchestrator.settings.store_settings import StoreSettings
from solstice_orchestrator.superseding.policy import SupersedeRule

EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  the ones that lead nowhere as a link


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "capacity_map": parse_slots,
    "executor_map": parse_executors,
    "vm_images": parse_image_folders,
    **dict.fromkeys(("repository_caps", "owner_caps", "owner_starts_per_hour"), parse_caps),
    **dict.fromkeys(("label_start_rates", "repository_start_rates"), parse_rates),
    "governor": parse_limits,
    "v1_trust": parse_sources,
    "untrusted_egress": parse_hosts,
    "untrusted_egress_private": parse_networks,
}
"""What reads a setting, and says what is wrong with it (ValueError)."""


def _default_capacity_map() -> str:
    return f"linux={os.cpu_count() or 1}"


def _default_workspaces() -> Path:
    return state_directory() / "workspaces"


def split(text: str) -> tuple[str, ...]:
    """Return the parts of a list by commas, without the white space around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


class OrchestratorSettings(
    StoreSettings,
    RetrySettings,
    FlowSettings,
    ArtifactSettings,
    CacheSettings,
    BrokerSettings,
    VerifySettings,
    AccessSettings,
    HttpSettings,
    TraceSettings,
    LogSettings,
):
    """All settings of `orchestrator run`: limits, timeouts, and the parts it uses."""

    store_may_be_memory = True

    capacity_map: str = Field(
        default_factory=_default_capacity_map,
        description="Slots per label: linux=4,illumos=1. By default as many for linux as there are processors.",
    )
    max_concurrency: int = Field(
        default=0, ge=0, description="Jobs at once over all labels; 0: as many as there are slots."
    )
    worker_name: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?$",
        description="Name of this worker, under which a pause or quarantine outlives its restart. Empty: the host's name.",
    )
    default_runs_on: str = Field(
        default="linux",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="Label of jobs that name none.",
    )
    executor: Literal["process", "podman", "qemu", "scripted"] = Field(
        default="process",
        description="What runs jobs: process (on this machine, not isolated), podman (each in a container), qemu (each in a "
        "virtual machine, VM), or scripted (simulates them, for trials).",
    )
    executor_map: str = Field(
        default="", description="Executors of labels that have another one: linux=podman,illumos=qemu."
    )
    vm_images: str = Field(
        default="", description="EXECUTOR=qemu: folder of the image of each label: linux=/srv/images/debian."
    )
    vm_acceleration: Literal["auto", "kvm", "tcg"] = Field(
        default="auto", description="EXECUTOR=qemu: kvm, tcg (slow), or auto: kvm where a VM starts with it."
    )
    vm_network: Literal["none", "default"] = Field(
        default="none",
        description="EXECUTOR=qemu: none, or default: what the worker's machine reaches, by slirp4netns.",
    )
    vm_memory_mib: int = Field(
        default=2048, ge=64, description="EXECUTOR=qemu: memory of a job, and the most that it may ask for."
    )
    vm_cpus: int = Field(default=2, ge=1, description="EXECUTOR=qemu: processors of a job, and its most.")
    vm_start_seconds: float = Field(
        default=120.0, gt=0, description="EXECUTOR=qemu: how long a VM may take until it is ready."
    )
    default_image: str = Field(
        default="", description="EXECUTOR=podman: image of jobs that name none. Empty: they fail."
    )
    allowed_images: str = Field(
        default="*",
        description="EXECUTOR=podman: images that jobs may name, as patterns by commas: docker.io/library/*,ghcr.io/acme/*.",
    )
    registry_logins: str = Field(
        default="",
        description="EXECUTOR=podman: file (TOML) of the logins that fetch images from private registries; without it, none.",
    )
    image_pull: PullPolicy = Field(
        default=PullPolicy.MISSING,
        description="EXECUTOR=podman: when images are fetched from their registries, unless the job says it: missing, "
        "always or never.",
    )
    container_network: NetworkAccess = Field(
        default=NetworkAccess.DEFAULT,
        description="EXECUTOR=podman: network of trusted jobs that name none: none, default (that of podman), or "
        "services-only. Untrusted jobs have none, or their services only; see UNTRUSTED_EGRESS.",
    )
    untrusted_egress: str = Field(
        default="",
        description="EXECUTOR=podman: hosts that untrusted jobs reach, by a proxy alone, with a port or else 443: "
        "pypi.org,*.debian.org:80. Empty: none.",
    )
    untrusted_egress_private: str = Field(
        default="",
        description="EXECUTOR=podman: private networks in which hosts of UNTRUSTED_EGRESS may be: 10.1.0.0/16. Empty: none.",
    )
    untrusted_egress_mib: int = Field(
        default=4096,
        ge=0,
        description="EXECUTOR=podman: how much an untrusted job and the hosts of UNTRUSTED_EGRESS may send each other in an attempt. 0: no limit.",
    )
    container_memory_mib: int = Field(
        default=2048,
        ge=8,
        description="EXECUTOR=podman: memory of a job, and the most that it may ask for.",
    )
    container_cpus: float = Field(
        default_factory=lambda: float(os.cpu_count() or 1),
        gt=0,
        description="EXECUTOR=podman: processors of a job, and the most that it may ask for.",
    )
    container_processes: int = Field(
        default=4096, ge=16, description="EXECUTOR=podman: processes and threads that a job may have."
    )
    container_services: int = Field(
        default=5,
        ge=0,
        description="EXECUTOR=podman: services that a job may have, each in a container with limits like the job's; 0: none.",
    )
    service_ready_seconds: float = Field(
        default=120.0,
        gt=0,
        description="How long a service may take to be ready, unless it sets ready-timeout.",
    )
    untrusted_runs: Literal["refuse", "approved", "isolated", "run"] = Field(
        default="refuse",
        description="Strangers' code (a fork's change): refuse it, run what was approved, run all of it where jobs are "
        "isolated (EXECUTOR=podman or qemu), or run all of it everywhere.",
    )
    v1_trust: str = Field(
        default="manual",
        description="Sources, by commas, whose requests are trusted when they have no field `trusted`, as publishers write that "
        "know only v1: manual,github. A change request never is. Empty: none.",
    )
    secrets_config: str = Field(
        default="",
        description="File (TOML) of the secrets that jobs of each repository get; without it, none.",
    )
    git_credentials: str = Field(
        default="",
        description="File (TOML) of the credentials that fetch private repositories; without it, none.",
    )
    workspaces: Path = Field(
        default_factory=_default_workspaces, description="Directory in which jobs are checked out and run."
    )
    git_protocols: str = Field(
        default="https,http,ssh",
        description="Protocols by which repositories may be fetched, of https, http, ssh, git, file.",
    )
    git_allow_private: bool = Field(
        default=False,
        description="Fetch also from hosts at private, loopback and link-local addresses.",
    )
    git_max_memory_mib: int = Field(
        default=1024, ge=128, description="Memory that each process of git may allocate in a checkout."
    )
    git_timeout_seconds: float = Field(default=600.0, gt=0, description="Time for one checkout.")
    git_max_mib: int = Field(default=4096, ge=1, description="Disk space for one checkout.")
    git_cache_mib: int = Field(
        default=1024,
        ge=0,
        description="Disk space for objects of fetched commits, of which further jobs get copies; 0: fetch for each.",
    )
    max_log_mib: int = Field(
        default=16, ge=1, description="Size of the stored log of one attempt: its beginning and its end."
    )
    stop_grace_seconds: float = Field(
        default=10.0,
        ge=0,
        description="Between SIGTERM and SIGKILL for a job that is cancelled or out of time.",
    )
    no_output_seconds: float = Field(
        default=1800.0,
        ge=0,
        description="How long a job may write nothing, unless it sets no-output-timeout; 0: without a limit.",
    )
    disk_reserve_mib: int = Field(
        default=256,
        ge=0,
        description="When less is free for the workspaces, the job with the largest one fails; 0: never.",
    )
    job_disk_mib: int = Field(
        default=0,
        ge=0,
        description="Disk space of the workspace, home and /tmp of a job; one that needs more fails. 0: without a limit of its own.",
    )
    job_path: str = Field(
        default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        description="PATH of jobs; they get no other variable of the orchestrator's environment.",
    )
    orchestrator_host: str = Field(
        default="127.0.0.1", description="Address to listen on for pages, the API and metrics."
    )
    orchestrator_port: int = Field(
        default=8081, ge=0, le=65535, description="Port to listen on; 0 takes any free one."
    )
    public_url: WebAddress = Field(
        default="",
        description="Public address of the pages; statuses link there. Without it: the address to listen on.",
    )
    deliveries_url: WebAddress = Field(
        default="",
        description="Public address of forge-integration's pages; runs link to their delivery.",
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, description="A worker that is silent for this long has lost its jobs."
    )
    renew_seconds: float = Field(
        default=20.0, gt=0, description="How often leases are renewed; at most half of LEASE_SECONDS."
    )
    rescue_seconds: float = Field(
        default=10.0, gt=0, description="How often lost jobs are rescued, give or take a fifth."
    )
    max_wait_seconds: float = Field(
        default=MAX_WAIT_SECONDS,
        gt=0,
        description="A job that has waited longer starts before all others of its label, of any priority.",
    )
    repository_caps: str = Field(
        default="",
        description="Jobs of a repository that may run at once, over all workers: *=8,acme/app=2. Empty: any number.",
    )
    owner_caps: str = Field(
        default="",
        description="Jobs of all repositories of an owner that may run at once, over all workers: *=20,acme=50. The owner is "
        "what stands before the first / of the repository's name. Empty: any number.",
    )
    owner_starts_per_hour: str = Field(
        default="",
        description="Jobs of an owner that may start in any hour: *=200,acme=1000 (*: each other owner). Empty: any number.",
    )
    label_start_rates: str = Field(
        default="",
        description="How fast jobs of a label may start, over all workers: linux=10/s:20,*=600/h is 10 a second, at most 20 "
        "at once, and of each other label 600 an hour. Empty: as fast as there are slots.",
    )
    repository_start_rates: str = Field(
        default="",
        description="The same per repository: *=60/m:10,acme/app=5/s.",
    )
    governor: str = Field(
        default="load=2.5,disk=5%,memory=5%,starting=4",
        description="A worker starts nothing while its load is higher or less is free; load and jobs being checked out are "
        "for each processor. off: no limits.",
    )
    governor_patience_seconds: float = Field(
        default=300.0,
        ge=0,
        description="When only the load has kept a worker from starting anything for so long, one job starts nevertheless; "
        "0: none does.",
    )
    adaptive_concurrency: bool = Field(
        default=True,
        description="Whether a worker halves the jobs it takes at once after infrastructure failures, or under load, and "
        "takes one more every 10 s after that.",
    )
    supersede: SupersedeRule = Field(
        default=SupersedeRule.RUNNING,
        description="Which older runs a newer push of the branch or change request ends: off (none), waiting (unstarted ones) or running (all).",
    )
    line_report_seconds: float = Field(
        default=20.0,
        ge=0,
        description="How often statuses of waiting jobs are updated with the number of jobs ahead; 0: never.",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, description="At the end: time for running jobs, before they are handed back."
    )
    retention_days: float = Field(
        default=90.0, ge=0, description="Runs that ended longer ago are removed, with their logs; 0: never."
    )

    @field_validator(*_READERS)
    @classmethod
    def _readable(cls, text: str, field: ValidationInfo) -> str:
        _READERS[field.field_name or ""](text)
        return text

    @field_validator("default_image")
    @classmethod
    def _image(cls, text: str) -> str:
        if text and not is_image_name(text):
            raise ValueError(f"must name an image, as python:3.12 does; not {text!r}")
        return text

    @field_validator("git_protocols")
    @classmethod
    def _known_protocols(cls, text: str) -> str:
        unknown = [name for name in split(text) if name not in REPO_URL_SCHEMES]
        if unknown or not split(text):
            raise ValueError(
                f"must list some of {', '.join(sorted(REPO_URL_SCHEMES))}, by commas; not {text!r}"
            )
        return text

    @model_validator(mode="after")
    def _renewed_in_time(self) -> "OrchestratorSettings":
        if self.renew_seconds * 2 > self.lease_seconds:
            raise ValueError("RENEW_SECONDS must be at most half of LEASE_SECONDS")
        return self

    @model_validator(mode="after")
    def _executors_that_run_jobs(self) -> "OrchestratorSettings":
        if self.executor == "scripted" and self.executor_map:
            raise ValueError("EXECUTOR_MAP cannot be used with EXECUTOR=scripted, which simulates all jobs")
        return self

    @property
    def name_of_worker(self) -> str:
        """`WORKER_NAME`, else the host's name as far as it may be one."""
        name = self.worker_name or re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")
        return name[:63] or "worker"

    @property
    def start_rates(self) -> StartRates:
        """`LABEL_START_RATES` and `REPOSITORY_START_RATES`."""
        return StartRates(
            labels=parse_rates(self.label_start_rates), repositories=parse_rates(self.repository_start_rates)
        )

    @property
    def quotas(self) -> Quotas:
        """`OWNER_CAPS` and `OWNER_STARTS_PER_HOUR`."""
        return Quotas(
            slots=parse_caps(self.owner_caps), starts_per_hour=parse_caps(self.owner_starts_per_hour)
        )

    @property
    def pages_url(self) -> str | None:
        """The base URL that statuses link to; None while the port is unknown."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = self.orchestrator_host
        if self.orchestrator_port == 0 or host in EVERY_ADDRESS:
            return None
        return f"http://{f'[{host}]' if ':' in host else host}:{self.orchestrator_port}"
