"""Looks at each part of a set-up, and changes nothing that lasts."""

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson

from solstice_cli.doctor import findings, job_files
from solstice_cli.doctor.findings import Check, Finding, FoundSchema
from solstice_cli.doctor.setup_settings import SetupSettings
from solstice_common import __version__
from solstice_common.addresses.http_client import http_client
from solstice_common.addresses.system_errors import cause_in_words
from solstice_common.broker import Broker, BrokerHealth, open_broker, read_topology
from solstice_common.broker.topology_check import topology_differences
from solstice_common.cli import running_up
from solstice_common.errors import ConfigurationError, SchemaTooNew, SolsticeError, first_of
from solstice_common.settings import is_memory, is_postgresql, sqlite_path, state_directory, without_password
from solstice_common.storage.migrations import migrations_of, missing
from solstice_common.storage.schema_state import applied_schema
from solstice_common.topology import full_topology
from solstice_orchestrator.domain.label_map import parse_executors
from solstice_orchestrator.git.version import git_problem
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts
from solstice_orchestrator.processes.egress.egress_trial import egress_problem
from solstice_orchestrator.scheduling.governor import parse_limits
from solstice_orchestrator.worker import sensors
from solstice_orchestrator.worker.executors.containers.container_plan import FIRST_USER, USERS
from solstice_orchestrator.worker.executors.containers.egress_plan import egress_file

NEXT_HOST_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.05
_OTHERS: Final = 0o077
_REACH: Final = "start it, or correct the URL: host, port, user and password"
_PORT: Final = "start the service, or correct its host and port; does a firewall or proxy stand between?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """One visit: the settings, and what earlier checks have learned for later ones."""

    settings: SetupSettings
    webhook_url: str
    """Where forges reach forge-integration; empty: its own host and port."""
    seconds: float
    """How long a server may take to answer."""
    versions: dict[str, str] = field(default_factory=dict)
    skews: dict[str, float] = field(default_factory=dict)
    """By how many seconds the clock of each server that showed its time is ahead of ours."""


async def versions(visit: Examination) -> Finding:
    answer = await asyncio.to_thread(_git_version)
    return findings.of_versions(__version__, answer, git_problem(answer or ""), visit.versions)


def _git_version() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    return subprocess.run([git, "--version"], capture_output=True, text=True, check=False).stdout.strip()


async def broker(visit: Examination) -> Finding:
    url = visit.settings.amqp_url
    where = without_password(url)
    if unseen := _unseen(Check.BROKER, url):
        return unseen
    try:
        async with open_broker(url, name="solstice doctor") as opened:
            health = await _connected(opened, visit.seconds)
    except SolsticeError as error:
        return findings.failure(Check.BROKER, str(error), _REACH)
    if not health.connected:
        detail = health.detail or "it did not answer in time"
        return findings.failure(Check.BROKER, f"no connection to the broker at {where}: {detail}", _REACH)
    if health.blocked is not None:
        return findings.failure(
            Check.BROKER,
            f"{where} takes no messages: {health.blocked}",
            "free memory or disk on the broker's machine",
        )
    if health.degraded is not None:
        return findings.warning(
            Check.BROKER, f"{where}: {health.degraded}", "change the setting that it names"
        )
    return findings.well(Check.BROKER, f"{where} answers")


async def _connected(opened: Broker, seconds: float) -> BrokerHealth:
    """Return the broker's health once it is connected, or has failed and not recovered."""
    loop = asyncio.get_running_loop()
    until, failed = loop.time() + seconds, False
    while not (health := opened.health).connected and loop.time() < until:
        if health.detail and not failed:
            # The next of several hosts may answer.
            failed, until = True, min(until, loop.time() + NEXT_HOST_SECONDS)
        await asyncio.sleep(POLL_SECONDS)
    return health


async def topology(visit: Examination) -> Finding:
    url = visit.settings.amqp_url
    if _unseen(Check.TOPOLOGY, url):
        return findings.well(Check.TOPOLOGY, "nothing to compare with yet")
    expected = full_topology(visit.settings)
    left = full_topology(visit.settings.model_copy(update={"amqp_priorities": "split"}))
    try:
        async with asyncio.timeout(visit.seconds):
            on_broker = await read_topology(url, left)
    except (SolsticeError, TimeoutError) as error:
        detail = str(error) or "the broker did not answer in time"
        return findings.warning(
            Check.TOPOLOGY, f"not compared: {detail}", "'solstice topology check --management-url URL'"
        )
    differences = topology_differences(expected, on_broker, left=left)
    if differences:
        first = differences[0]
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        return findings.warning(
            Check.TOPOLOGY,
            f"{first.object}: {first.difference}{more}",
            "'solstice topology check' names each with its remedy",
        )
    return findings.well(
        Check.TOPOLOGY,
        f"{len(expected.exchanges)} exchanges and {len(expected.queues)} queues as they must be",
    )


async def database(visit: Examination) -> Finding:
    url = visit.settings.database_url
    return await _schema(
        visit, Check.DATABASE, url, "solstice_orchestrator.store.schema", "schema_migrations"
    )


async def inbox(visit: Examination) -> Finding:
    url = visit.settings.forge_inbox_url
    return await _schema(visit, Check.INBOX, url, "solstice_forge.inbox.schema", "inbox_migrations")


async def _schema(visit: Examination, check: Check, url: str, package: str, table: str) -> Finding:
    where = without_password(url)
    if unseen := _unseen(check, url):
        return unseen
    begun = time.time()
    try:
        async with asyncio.timeout(visit.seconds):
            found = await applied_schema(url, applied=table)
        if found.now is not None:
            visit.skews["database"] = found.now - (begun + time.time()) / 2
        steps = migrations_of(f"{package}.{'postgresql' if is_postgresql(url) else 'sqlite'}")
        pending = missing(where, found.applied, steps)
    except SchemaTooNew as error:
        return findings.failure(check, str(error), "upgrade Solstice CI, or restore an older backup")
    except ConfigurationError as error:
        return findings.failure(check, str(error), "correct the URL: user, password, database")
    except (SolsticeError, TimeoutError) as error:
        detail = str(error) or f"the database {where} did not answer in time"
        return findings.failure(check, detail, _REACH)
    return findings.of_schema(
        check,
        FoundSchema(
            where=where, version=max(found.applied, default=0), pending=len(pending), server=found.server
        ),
    )


async def clock(visit: Examination) -> Finding:
    return findings.of_clock(visit.skews)


async def disk(visit: Examination) -> Finding:
    free = {}
    for folder in _folders(visit.settings).values():
        percent = sensors.read(_existing(folder)).disk_free
        if percent is not None:
            free[str(folder)] = percent
    return findings.of_disk(free, parse_limits(visit.settings.governor).disk)


async def folders(visit: Examination) -> Finding:
    chosen = _folders(visit.settings)
    problems = [
        f"{setting}: {folder}: nothing can be written in {problem}"
        for setting, folder in chosen.items()
        if (problem := job_files.unwritable(folder)) is not None
    ]
    return findings.of_folders(problems, sorted({str(folder) for folder in chosen.values()}))


async def secrets(visit: Examination) -> Finding:
    return await asyncio.to_thread(_secrets, visit.settings)


def _secrets(settings: SetupSettings) -> Finding:
    named = {
        "AMQP_PASSWORD_FILE": settings.amqp_password_file,
        "SECRETS_CONFIG": settings.secrets_config,
        "GIT_CREDENTIALS": settings.git_credentials,
        "REGISTRY_LOGINS": settings.registry_logins,
        "CACHE_CREDENTIALS": settings.cache_credentials,
        "FORGE_CONFIG": settings.forge_config,
    }
    files = {setting: Path(path).expanduser() for setting, path in named.items() if path}
    if settings.solstice_tokens.exists():
        files["SOLSTICE_TOKENS"] = settings.solstice_tokens
    unreadable = [
        f"{setting}: {path}: {problem}"
        for setting, path in files.items()
        if (problem := _unreadable(path)) is not None
    ]
    shared = [str(path) for path in files.values() if path.exists() and path.stat().st_mode & _OTHERS]
    return findings.of_secrets(unreadable, shared, len(files))


async def egress(visit: Examination) -> Finding:
    settings = visit.settings
    hosts = parse_hosts(settings.untrusted_egress)
    if not hosts:
        return findings.well(Check.EGRESS, "untrusted jobs reach no hosts (UNTRUSTED_EGRESS)")
    if "podman" not in {settings.executor, *parse_executors(settings.executor_map).values()}:
        return findings.warning(
            Check.EGRESS,
            "UNTRUSTED_EGRESS has no effect: no jobs run in containers of podman",
            "set EXECUTOR or EXECUTOR_MAP, or leave UNTRUSTED_EGRESS empty",
        )
    is_root = os.geteuid() == 0
    plan = egress_file(AllowedHosts(hosts=hosts), "doctor-0", (), is_root=is_root)
    problem = await asyncio.to_thread(egress_problem, plan, visit.seconds)
    return findings.of_egress(len(hosts), problem, _accounts_of_jobs() if is_root else ())


def _accounts_of_jobs() -> Sequence[str]:
    users = range(FIRST_USER, FIRST_USER + 2 * USERS)
    return [account.pw_name for account in pwd.getpwall() if account.pw_uid in users]


async def artifacts(visit: Examination) -> Finding:
    return await asyncio.to_thread(job_files.artifacts, visit.settings)


async def caches(visit: Examination) -> Finding:
    return await job_files.caches(visit.settings, visit.seconds)


async def webhooks(visit: Examination) -> Finding:
    up, settings = running_up.read(), visit.settings
    url = visit.webhook_url.rstrip("/") or (up.webhooks.removesuffix("/webhooks") if up else "")
    url = url or _address(settings.forge_host, settings.forge_port)
    return await _readiness(visit, Check.WEBHOOKS, "forge-integration", url)


async def orchestrator(visit: Examination) -> Finding:
    up, settings = running_up.read(), visit.settings
    url = up.page if up else _address(settings.orchestrator_host, settings.orchestrator_port)
    return await _readiness(visit, Check.ORCHESTRATOR, "orchestrator", url)


async def _readiness(visit: Examination, check: Check, service: str, url: str) -> Finding:
    where, begun = f"{service} at {without_password(url)}", time.time()
    try:
        async with http_client(url, timeout=visit.seconds) as http:
            answer = await http.get(f"{url}/readyz")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return findings.failure(check, f"no {where}: {cause_in_words(error)}", _PORT)
    their_time = _clock_of(answer)
    if their_time is not None:
        visit.skews[service] = their_time - (begun + time.time()) / 2
    document = _document(answer)
    if isinstance(document.get("version"), str):
        visit.versions[service] = document["version"]
    return findings.of_readiness(check, where, answer.status_code, document)


def _clock_of(answer: httpx2.Response) -> float | None:
    """Return the server's time; its header leaves out the part of a second."""
    try:
        return parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return None


def _document(answer: httpx2.Response) -> dict[str, Any]:
    try:
        document = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _address(host: str, port: int) -> str:
    return running_up.reachable(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def _unseen(check: Check, url: str) -> Finding | None:
    """Return the finding about what this process cannot open: a missing file, or another's memory."""
    if is_memory(url):
        return findings.warning(
            check,
            f"{url} is in the memory of its service, and ends with it",
            "keep it in a file with sqlite:///FILE",
        )
    if not url.startswith("sqlite:") or (path := sqlite_path(url)).exists():
        return None
    return findings.warning(check, f"{path} is not there yet", "start a service: it makes the file")


def _folders(settings: SetupSettings) -> Mapping[str, Path]:
    """Return the folders in which the services write, by the setting that names each."""
    files = {
        "AMQP_URL": settings.amqp_url,
        "DATABASE_URL": settings.database_url,
        "FORGE_INBOX_URL": settings.forge_inbox_url,
    }
    of_files = {name: sqlite_path(url).parent for name, url in files.items() if url.startswith("sqlite:")}
    return {"SOLSTICE_HOME": state_directory(), "WORKSPACES": settings.workspaces.expanduser(), **of_files}


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next((each for each in (folder, *folder.absolute().parents) if each.is_dir()), Path("/"))


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


PROBES: Final[Mapping[Check, Callable[[Examination], Awaitable[Finding]]]] = {
    Check.BROKER: broker,
    Check.TOPOLOGY: topology,
    Check.DATABASE: database,
    Check.INBOX: inbox,
    Check.DISK: disk,
    Check.FOLDERS: folders,
    Check.SECRETS: secrets,
    Check.EGRESS: egress,
    Check.ARTIFACTS: artifacts,
    Check.CACHES: caches,
    Check.WEBHOOKS: webhooks,
    Check.ORCHESTRATOR: orchestrator,
    # What servers have told above is judged last.
    Check.VERSIONS: versions,
    Check.CLOCK: clock,
}


async def examine(visit: Examination, checks: Sequence[Check]) -> Sequence[Finding]:
    """Return the finding of each of these checks, in the order of `Check`."""
    found = {}
    for check, probe in PROBES.items():
        if check in checks:
            try:
                found[check] = await probe(visit)
            except Exception as error:  # noqa: BLE001  a doctor who falls ill is no help: the other checks go on
                broken = first_of(error)
                found[check] = findings.failure(
                    check, f"{type(broken).__name__}: {broken}", "report it, with this line"
                )
    return [found[check] for check in Check if check in found]
