"""Open all parts of the orchestrator in order, and close them on leaving."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from solstice_common.broker.protocol import Broker
from solstice_common.http.access import access_rules, check_listening, logged_access
from solstice_common.tracing.otlp import SpanExporter, open_exporter
from solstice_orchestrator.domain.trust import parse_sources
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.version import warn_of_unfit_git
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.opening.awaited_store import retry_until_available
from solstice_orchestrator.opening.factories import (
    artifacts_of,
    broker_of,
    executor_of,
    git_hosts_of,
    git_policy_of,
    governor_of,
    registration_of,
    signature_rules_of,
    store_of,
    web_server_of,
)
from solstice_orchestrator.processes.orphans import adopt
from solstice_orchestrator.scheduling.capacity import capacity, parse_slots
from solstice_orchestrator.scheduling.governor import parse_limits
from solstice_orchestrator.scheduling.workers import WorkerRegistration
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.early_fetches import EarlyFetches
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.configured_caches import caches_of
from solstice_orchestrator.worker.caches.job_caches import JobCaches
from solstice_orchestrator.worker.executors import MeteredExecutor
from solstice_orchestrator.worker.executors.containers.left_containers import left_containers
from solstice_orchestrator.worker.launchers import open_launchers
from solstice_orchestrator.worker.pressure import Governor, StartingJobs
from solstice_orchestrator.worker.secret_rules import SecretRules, read_secret_rules
from solstice_orchestrator.worker.workspaces import EndLeft, Workspaces, open_workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The open parts of a running orchestrator."""

    settings: OrchestratorSettings
    registration: WorkerRegistration
    store: JobStore
    broker: Broker
    workspaces: Workspaces
    artifacts: ArtifactArchives
    caches: CacheStore
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
    exporter: SpanExporter | None
    """None while nothing is traced."""
    intakes: list[Intake | CancelIntake]
    """What takes messages from the broker, for `/readyz`; empty before it begins."""
    left_queues: set[str]
    """Queues of priority classes that exist while AMQP_PRIORITIES=one, with their dead-letter queues."""


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
    signatures = signature_rules_of(settings, v1_trust)
    check_listening(access, host=settings.orchestrator_host, setting="ORCHESTRATOR_HOST")
    git = git_policy_of(settings, environ, v1_trust)
    artifacts, caches = artifacts_of(settings), caches_of(settings)
    await warn_of_unfit_git(git)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(logged_access(access, service="orchestrator"))
        store = await retry_until_available(
            lambda: stack.enter_async_context(store_of(settings, v1_trust, rng)), settings, stop, rng
        )
        broker = await stack.enter_async_context(broker_of(settings, metrics))
        exporter = await stack.enter_async_context(open_exporter(settings, service="orchestrator"))
        adopt()
        launcher = await open_launchers(settings, environ, v1_trust)
        end_left = left_containers(environ).remove
        workspaces = await stack.enter_async_context(open_workspaces(settings.workspaces, end_left))
        total = capacity(parse_slots(settings.capacity_map), settings.max_concurrency)
        limits = parse_limits(settings.governor)
        starting, hosts = StartingJobs(), git_hosts_of(total, limits)
        planned = PlannedCommits(git.cache_max_bytes)
        executor = executor_of(
            settings,
            workspaces,
            git,
            starting,
            hosts=hosts,
            planned=planned,
            launcher=launcher,
            artifacts=artifacts,
            caches=JobCaches(store=caches, v1_trust=v1_trust, metrics=metrics),
        )
        governor = governor_of(
            settings, total, limits, workspaces=workspaces, starting=starting, metrics=metrics
        )
        left_queues, intakes = set[str](), list[Intake | CancelIntake]()
        web = web_server_of(
            settings,
            access,
            store=store,
            broker=broker,
            governor=governor,
            metrics=metrics,
            left=left_queues,
            intakes=intakes,
            archives=artifacts.directory,
            caches=caches,
        )
        url = await stack.enter_async_context(web)
        yield Components(
            settings=settings,
            registration=registration_of(settings, total),
            store=store,
            secret_rules=secret_rules,
            broker=broker,
            workspaces=workspaces,
            artifacts=artifacts.directory,
            caches=caches,
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
            exporter=exporter,
            left_queues=left_queues,
            intakes=intakes,
        )
