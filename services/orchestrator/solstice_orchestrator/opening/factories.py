"""Make each part of the orchestrator as its settings say."""

import functools
import os
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from solstice_common import __version__
from solstice_common.broker import open_broker
from solstice_common.broker.depths import depths_of
from solstice_common.broker.protocol import Broker
from solstice_common.broker.receiving.receiver import first_problem
from solstice_common.http.access import Access
from solstice_common.http.server.serving import bounds_of
from solstice_common.messages import Source
from solstice_common.settings import memory_notice
from solstice_common.signing.key_file import KeyFile, read_public
from solstice_common.topology import full_topology
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.credentials.proxy_choice import check_proxies
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.capacity import Capacity
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.governor import MachineLimits, startable
from solstice_orchestrator.scheduling.workers import WorkerRegistration
from solstice_orchestrator.settings import OrchestratorSettings, split
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.web.app import create_app, serving
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.worker import sensors
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping, ArtifactLimits
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.job_caches import JobCaches
from solstice_orchestrator.worker.executors import Executor, make_executor
from solstice_orchestrator.worker.executors.launcher import Launcher
from solstice_orchestrator.worker.pressure import Governor, StartingJobs
from solstice_orchestrator.worker.workspaces import Workspaces

DAY: Final = 86400.0
MIB: Final = 1024 * 1024


def store_of(
    settings: OrchestratorSettings, v1_trust: frozenset[Source], rng: random.Random
) -> AbstractAsyncContextManager[JobStore]:
    """Open the store, whose decisions follow the settings of limits, retries and trust."""
    return open_store(
        settings.database_url,
        rng=rng,
        public_url=settings.pages_url,
        lease_seconds=settings.lease_seconds,
        retries=settings.retries,
        max_wait_seconds=settings.max_wait_seconds,
        caps=parse_caps(settings.repository_caps),
        quotas=settings.quotas,
        rates=settings.start_rates,
        supersede=settings.supersede,
        v1_trust=v1_trust,
        sampler=settings.trace_sampler,
    )


def broker_of(settings: OrchestratorSettings, metrics: Metrics) -> AbstractAsyncContextManager[Broker]:
    """Open a connection to the broker as the settings say."""
    return open_broker(
        settings.amqp_url,
        name="orchestrator",
        on_dropped=None if settings.dead_letter_enabled else metrics.dead_letter_dropped,
        nats_monitor_url=settings.nats_monitor_url,
        nats_sync_always=settings.nats_sync_always,
    )


def signature_rules_of(settings: OrchestratorSettings, v1_trust: frozenset[Source]) -> SignatureRules | None:
    """Return the keys that must sign requests; ConfigurationError for an unusable file."""
    if not settings.verify_keys:
        return None
    return SignatureRules(
        keys=KeyFile(Path(settings.verify_keys).expanduser(), read_public),
        v1_trust=v1_trust,
        max_age_seconds=settings.retention_days * DAY or None,
    )


def git_policy_of(
    settings: OrchestratorSettings, environ: Mapping[str, str], v1_trust: frozenset[Source]
) -> GitPolicy:
    """Return what git may do; ConfigurationError for an unusable proxy or file of credentials."""
    check_proxies(environ)
    return GitPolicy(
        protocols=split(settings.git_protocols),
        timeout_seconds=settings.git_timeout_seconds,
        max_bytes=settings.git_max_mib * MIB,
        cache_max_bytes=settings.git_cache_mib * MIB,
        max_memory_bytes=settings.git_max_memory_mib * MIB,
        allow_private=settings.git_allow_private,
        credentials=GitCredentials(settings.git_credentials, environ, v1_trust=v1_trust),
        environment=environ,
    )


def git_hosts_of(total: Capacity, limits: MachineLimits) -> GitHosts:
    """Return how many fetches of one host may run: no more than jobs may start."""
    may_start = startable(limits, os.cpu_count() or 1, 0)
    return GitHosts(slots=total.limit if may_start is None else min(total.limit, may_start))


def artifacts_of(settings: OrchestratorSettings) -> ArtifactKeeping:
    """Return what stores artifacts; the directory is made for the first one."""
    directory = ArtifactArchives(settings.artifact_directory.expanduser())
    limits = ArtifactLimits(
        most_bytes=settings.artifact_max_mib * MIB,
        all_bytes=settings.artifact_disk_mib * MIB,
        reserve_bytes=settings.disk_reserve_mib * MIB,
        retention_seconds=settings.artifact_days * DAY,
        longest_seconds=settings.retention_days * DAY or None,
    )
    return ArtifactKeeping(directory=directory, limits=limits)


def executor_of(
    settings: OrchestratorSettings,
    workspaces: Workspaces,
    git: GitPolicy,
    starting: StartingJobs,
    *,
    hosts: GitHosts,
    planned: PlannedCommits,
    launcher: Launcher,
    artifacts: ArtifactKeeping,
    caches: JobCaches,
) -> Executor:
    """Make what runs a claimed attempt."""
    return make_executor(
        settings.executor,
        workspaces=workspaces,
        git=git,
        grace_seconds=settings.stop_grace_seconds,
        max_log_bytes=settings.max_log_mib * MIB,
        path=settings.job_path,
        no_output_seconds=settings.no_output_seconds,
        disk_reserve_bytes=settings.disk_reserve_mib * MIB,
        disk_limit_bytes=settings.job_disk_mib * MIB,
        starting=starting,
        hosts=hosts,
        launcher=launcher,
        planned=planned,
        artifacts=artifacts,
        caches=caches,
    )


def governor_of(
    settings: OrchestratorSettings,
    total: Capacity,
    limits: MachineLimits,
    *,
    workspaces: Workspaces,
    starting: StartingJobs,
    metrics: Metrics,
) -> Governor:
    """Make what lowers the number of jobs while the machine is under pressure."""
    return Governor(
        limit=total.limit,
        # Scripted jobs need no checkout, so any number may start.
        limits=replace(limits, starting=None) if settings.executor == "scripted" else limits,
        adaptive=settings.adaptive_concurrency,
        read=functools.partial(sensors.read, workspaces.directory),
        starting=starting,
        metrics=metrics,
        patience_seconds=settings.governor_patience_seconds,
        start_seconds=settings.start_seconds,
    )


def web_server_of(
    settings: OrchestratorSettings,
    access: Access,
    *,
    store: JobStore,
    broker: Broker,
    governor: Governor,
    metrics: Metrics,
    left: set[str],
    intakes: Sequence[Intake | CancelIntake],
    archives: ArtifactArchives,
    caches: CacheStore,
) -> AbstractAsyncContextManager[str]:
    """Serve the pages and the API; `left` and `intakes` become what `Components` describes."""
    streams, declared = OpenStreams(), [each.name for each in full_topology(settings).queues]
    app = create_app(
        store=store,
        broker_health=lambda: broker.health,
        queue_depths=lambda: depths_of(broker, [*declared, *sorted(left)]),
        require_durable=settings.broker_require_durable,
        notices=memory_notice("store", "DATABASE_URL", settings.database_url),
        metrics=metrics,
        version=__version__,
        access=access,
        public_url=settings.public_url or None,
        deliveries_url=settings.deliveries_url.rstrip("/"),
        streams=streams,
        unfit=lambda: governor.unfit,
        intake_problem=lambda: first_problem(intakes),
        dead_letters=DeadLetterAccess(broker=broker, settings=settings),
        find_archive=archives.find,
        caches=caches,
    )
    return serving(
        app,
        streams,
        host=settings.orchestrator_host,
        port=settings.orchestrator_port,
        bounds=bounds_of(settings),
        refused=metrics.http_refused,
    )


def registration_of(settings: OrchestratorSettings, total: Capacity) -> WorkerRegistration:
    """Return how this process registers as a worker; its id is new at each start."""
    return WorkerRegistration(
        worker_id=f"{settings.name_of_worker}:{os.getpid()}:{secrets.token_hex(4)}",
        name=settings.name_of_worker,
        host=socket.gethostname(),
        version=__version__,
        capacity=total,
    )
