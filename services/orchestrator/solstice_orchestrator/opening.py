"""Open the parts of the orchestrator from its settings, and close them in order."""

import asyncio
import functools
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import structlog

from solstice_common import __version__
from solstice_common.broker import open_broker
from solstice_common.broker.depths import depths_of
from solstice_common.broker.protocol import Broker
from solstice_common.broker.receiving.receiver import first_problem
from solstice_common.errors import StoreUnavailable
from solstice_common.http.access import Access, access_rules, check_listening, logged_access
from solstice_common.http.server.serving import bounds_of
from solstice_common.messages import Source
from solstice_common.runtime.backoff import backoff_seconds
from solstice_common.runtime.pausing import pause
from solstice_common.settings import is_postgresql
from solstice_common.signing.key_file import KeyFile, read_public
from solstice_common.topology import full_topology
from solstice_orchestrator.domain.trust import parse_sources
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.credentials.proxy_choice import check_proxies
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.version import warn_of_unfit_git
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.processes.orphans import adopt
from solstice_orchestrator.scheduling.capacity import Capacity, capacity, parse_slots
from solstice_orchestrator.scheduling.caps import parse_caps
from solstice_orchestrator.scheduling.governor import MachineLimits, parse_limits, startable
from solstice_orchestrator.scheduling.workers import WorkerRegistration
from solstice_orchestrator.settings import OrchestratorSettings, split
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.web.app import create_app, serving
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.worker import sensors
from solstice_orchestrator.worker.executors import Executor, MeteredExecutor, make_executor
from solstice_orchestrator.worker.executors.containers.left_containers import left_containers
from solstice_orchestrator.worker.executors.launcher import Launcher
from solstice_orchestrator.worker.launchers import open_launchers
from solstice_orchestrator.worker.pressure import Governor, StartingJobs
from solstice_orchestrator.worker.secret_rules import SecretRules, read_secret_rules
from solstice_orchestrator.worker.workspaces import EndLeft, Workspaces, open_workspaces

log = structlog.get_logger(__name__)

DAY: Final = 86400.0
MIB: Final = 1024 * 1024
STORE_RETRY_SECONDS: Final = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The open parts of a running orchestrator."""

    settings: OrchestratorSettings
    registration: WorkerRegistration
    store: JobStore
    broker: Broker
    workspaces: Workspaces
    end_left: EndLeft
    git: GitPolicy
    executor: MeteredExecutor
    isolates: Callable[[str], bool]
    """Whether jobs of a label are isolated."""
    governor: Governor
    starting: StartingJobs
    hosts: GitHosts
    planned: PlannedCommits
    """Small commits that planning has fetched, for their checkouts."""
    early: EarlyFetches
    secret_rules: SecretRules
    metrics: Metrics
    rng: random.Random
    url: str
    signatures: SignatureRules | None
    intakes: list[Intake | CancelIntake]
    """What takes messages from the broker, for `/readyz`; empty before it begins."""
    left_queues: set[str]
    """Queues of priority classes that exist while AMQP_PRIORITIES=one, with their dead-letter queues."""


class StoppedWhileOpening(Exception):
    """The orchestrator was asked to stop while it waited for the database."""


@asynccontextmanager
async def open_components(
    settings: OrchestratorSettings, stop: asyncio.Event, environ: Mapping[str, str]
) -> AsyncIterator[Components]:
    """Open all parts, and close them on leaving.

    The web server is opened last, when there is something to show, and closed first.
    """
    # Ids and jitter need not be secret, only different in each process.
    rng = random.Random(secrets.randbits(128))  # noqa: S311
    metrics = Metrics(dead_letter_enabled=settings.dead_letter_enabled)
    access = access_rules(settings)
    v1_trust = parse_sources(settings.v1_trust)
    secret_rules = replace(read_secret_rules(settings.secrets_config, environ), v1_trust=v1_trust)
    signatures = _signatures(settings, v1_trust)
    check_listening(access, host=settings.orchestrator_host, setting="ORCHESTRATOR_HOST")
    git = _git_policy(settings, environ, v1_trust)
    await warn_of_unfit_git(git)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(logged_access(access, service="orchestrator"))
        store = await retry_until_available(
            lambda: stack.enter_async_context(_open_store(settings, v1_trust, rng)), settings, stop, rng
        )
        broker = await stack.enter_async_context(open_own_broker(settings, metrics))
        adopt()
        launcher = await open_launchers(settings, environ, v1_trust)
        end_left = left_containers(environ).remove
        workspaces = await stack.enter_async_context(open_workspaces(settings.workspaces, end_left))
        total = capacity(parse_slots(settings.capacity_map), settings.max_concurrency)
        limits = parse_limits(settings.governor)
        starting, hosts = StartingJobs(), _git_hosts(total, limits)
        planned = PlannedCommits(git.cache_max_bytes)
        executor = _executor(
            settings, workspaces, git, starting, hosts=hosts, planned=planned, launcher=launcher
        )
        governor = _governor(
            settings, total, limits, workspaces=workspaces, starting=starting, metrics=metrics
        )
        left_queues, intakes = set[str](), list[Intake | CancelIntake]()
        web = _web(
            settings,
            access,
            store=store,
            broker=broker,
            governor=governor,
            metrics=metrics,
            left=left_queues,
            intakes=intakes,
        )
        url = await stack.enter_async_context(web)
        yield Components(
            settings=settings,
            registration=_registration(settings, total),
            store=store,
            secret_rules=secret_rules,
            broker=broker,
            workspaces=workspaces,
            end_left=end_left,
            git=git,
            executor=MeteredExecutor(
                executor=executor, metrics=metrics, isolates=executor.isolates, ended=governor.ended
            ),
            isolates=lambda label: launcher.of(label).isolates,
            governor=governor,
            starting=starting,
            hosts=hosts,
            planned=planned,
            early=EarlyFetches(),
            metrics=metrics,
            rng=rng,
            url=url,
            signatures=signatures,
            left_queues=left_queues,
            intakes=intakes,
        )


def _git_hosts(total: Capacity, limits: MachineLimits) -> GitHosts:
    may_start = startable(limits, os.cpu_count() or 1, 0)
    return GitHosts(slots=total.limit if may_start is None else min(total.limit, may_start))


def _executor(
    settings: OrchestratorSettings,
    workspaces: Workspaces,
    git: GitPolicy,
    starting: StartingJobs,
    *,
    hosts: GitHosts,
    planned: PlannedCommits,
    launcher: Launcher,
) -> Executor:
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
    )


def _governor(
    settings: OrchestratorSettings,
    total: Capacity,
    limits: MachineLimits,
    *,
    workspaces: Workspaces,
    starting: StartingJobs,
    metrics: Metrics,
) -> Governor:
    return Governor(
        limit=total.limit,
        # Scripted jobs need no checkout, so any number may start.
        limits=replace(limits, starting=None) if settings.executor == "scripted" else limits,
        adaptive=settings.adaptive_concurrency,
        read=functools.partial(sensors.read, workspaces.directory),
        starting=starting,
        metrics=metrics,
        patience_seconds=settings.governor_patience_seconds,
    )


def _web(
    settings: OrchestratorSettings,
    access: Access,
    *,
    store: JobStore,
    broker: Broker,
    governor: Governor,
    metrics: Metrics,
    left: set[str],
    intakes: Sequence[Intake | CancelIntake],
) -> AbstractAsyncContextManager[str]:
    """Serve the pages and the API; `left` and `intakes` become what `Components` describes."""
    streams, declared = OpenStreams(), [each.name for each in full_topology(settings).queues]
    app = create_app(
        store=store,
        broker_health=lambda: broker.health,
        queue_depths=lambda: depths_of(broker, [*declared, *sorted(left)]),
        require_durable=settings.broker_require_durable,
        metrics=metrics,
        version=__version__,
        access=access,
        public_url=settings.public_url or None,
        deliveries_url=settings.deliveries_url.rstrip("/"),
        streams=streams,
        unfit=lambda: governor.unfit,
        intake_problem=lambda: first_problem(intakes),
        dead_letters=DeadLetterAccess(broker=broker, settings=settings),
    )
    return serving(
        app,
        streams,
        host=settings.orchestrator_host,
        port=settings.orchestrator_port,
        bounds=bounds_of(settings),
        refused=metrics.http_refused,
    )


def open_own_broker(settings: OrchestratorSettings, metrics: Metrics) -> AbstractAsyncContextManager[Broker]:
    """Open a connection to the broker as the settings say."""
    return open_broker(
        settings.amqp_url,
        name="orchestrator",
        on_dropped=None if settings.dead_letter_enabled else metrics.dead_letter_dropped,
        nats_monitor_url=settings.nats_monitor_url,
        nats_sync_always=settings.nats_sync_always,
    )


def _registration(settings: OrchestratorSettings, total: Capacity) -> WorkerRegistration:
    return WorkerRegistration(
        worker_id=f"{settings.name_of_worker}:{os.getpid()}:{secrets.token_hex(4)}",
        name=settings.name_of_worker,
        host=socket.gethostname(),
        version=__version__,
        capacity=total,
    )


def _signatures(settings: OrchestratorSettings, v1_trust: frozenset[Source]) -> SignatureRules | None:
    """Return the keys that must sign requests; ConfigurationError for an unusable file."""
    if not settings.verify_keys:
        return None
    return SignatureRules(
        keys=KeyFile(Path(settings.verify_keys).expanduser(), read_public),
        v1_trust=v1_trust,
        max_age_seconds=settings.retention_days * DAY or None,
    )


def _git_policy(
    settings: OrchestratorSettings, environ: Mapping[str, str], v1_trust: frozenset[Source]
) -> GitPolicy:
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


def _open_store(
    settings: OrchestratorSettings, v1_trust: frozenset[Source], rng: random.Random
) -> AbstractAsyncContextManager[JobStore]:
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
    )


async def retry_until_available(
    request: Callable[[], Awaitable[T]],
    settings: OrchestratorSettings,
    stop: asyncio.Event,
    rng: random.Random,
) -> T:
    """Return the store's answer; retry while a PostgreSQL is unavailable.

    After a power failure the orchestrator may start before its database.
    """
    failures = 0
    while True:
        try:
            return await request()
        except StoreUnavailable as error:
            if not is_postgresql(settings.database_url):
                raise
            if not failures:
                log.warning(LogEvent.STORE_AWAITED, detail=str(error))
        await pause(
            backoff_seconds(failures, rng=rng, base_seconds=0.2, cap_seconds=STORE_RETRY_SECONDS), unless=stop
        )
        if stop.is_set():
            raise StoppedWhileOpening
        failures += 1
