"""What a check of a set-up found, and how serious that is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.values.quantities import quantity

PAGE: Final = "docs/operations/doctor.md"
CLOCK_WARNING_SECONDS: Final = 5.0
CLOCK_FAILURE_SECONDS: Final = 30.0
"""Half of a lease, and of the time for which forges and we accept a signed token."""
DISK_DEFAULT_PERCENT: Final = 5.0
OLDEST_POSTGRESQL: Final = 15


class Check(StrEnum):
    """The parts of a set-up, in order; each has a section of the page."""

    VERSIONS = "versions"
    BROKER = "broker"
    TOPOLOGY = "topology"
    DATABASE = "database"
    INBOX = "inbox"
    CLOCK = "clock"
    DISK = "disk"
    FOLDERS = "folders"
    SECRETS = "secrets"
    EGRESS = "egress"
    ARTIFACTS = "artifacts"
    CACHES = "caches"
    WEBHOOKS = "webhooks"
    ORCHESTRATOR = "orchestrator"


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, and needs attention."""
    FAILURE = "failure"
    """Builds fail, wait or are lost until it is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: Check
    level: Level
    detail: str
    """What was found, with the names of what was looked at."""
    remedy: str = ""
    """What to do; empty when all is well."""

    @property
    def page(self) -> str:
        """Where the check is described."""
        return f"{PAGE}#{self.check}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchema:
    """A database as it was found."""

    where: str
    version: int
    """The newest migration that was applied; 0: it has no tables yet."""
    pending: int
    """How many migrations are missing."""
    server: int | None = None
    """The major version of PostgreSQL."""


def well(check: Check, detail: str) -> Finding:
    return Finding(check=check, level=Level.OK, detail=detail)


def warning(check: Check, detail: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, detail=detail, remedy=remedy)


def failure(check: Check, detail: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.FAILURE, detail=detail, remedy=remedy)


def of_versions(own: str, git: str | None, git_problem: str | None, others: dict[str, str]) -> Finding:
    """Judge the versions: ours, git's, and those of services that answered."""
    here = f"Solstice CI {own}, {git or 'no git'}"
    if git is None:
        return failure(Check.VERSIONS, here, "install git 2.37 or newer: workers fetch commits with it")
    different = [f"{service} runs {version}" for service, version in others.items() if version != own]
    if different:
        return warning(
            Check.VERSIONS,
            f"{here}; {', '.join(different)}",
            "restart what runs the other version, or use the command of that version",
        )
    if git_problem is not None:
        return warning(Check.VERSIONS, f"{here}: {git_problem}", "install git 2.37 or newer")
    return well(Check.VERSIONS, here)


def of_schema(check: Check, found: FoundSchema) -> Finding:
    """Judge the schema of a database that answers."""
    if found.server is not None and found.server < OLDEST_POSTGRESQL:
        return failure(
            check,
            f"{found.where} is PostgreSQL {found.server}",
            f"upgrade it to PostgreSQL {OLDEST_POSTGRESQL} or newer",
        )
    if not found.version:
        return warning(check, f"{found.where} has no tables yet", "start the service: it makes them")
    if found.pending:
        missing = quantity(found.pending, "migration")
        return warning(
            check,
            f"{found.where} has schema version {found.version}, and misses {missing}",
            "start the service of this version: it brings the schema up to date",
        )
    return well(check, f"{found.where}, schema version {found.version}")


def of_clock(skews: dict[str, float]) -> Finding:
    """Judge by how many seconds other clocks are ahead of this one."""
    if not skews:
        return well(Check.CLOCK, "no other clock to compare with")
    name, skew = max(skews.items(), key=lambda each: abs(each[1]))
    side = "ahead of" if skew > 0 else "behind"
    detail = f"the clock of the {name} is {abs(skew):.0f} s {side} this one"
    remedy = "synchronise the clocks of all machines (NTP)"
    if abs(skew) > CLOCK_FAILURE_SECONDS:
        return failure(Check.CLOCK, detail, remedy)
    if abs(skew) > CLOCK_WARNING_SECONDS:
        return warning(Check.CLOCK, detail, remedy)
    return well(Check.CLOCK, f"within {CLOCK_WARNING_SECONDS:.0f} s of {', '.join(skews)}")


def of_disk(free: dict[str, float], limit: float | None) -> Finding:
    """Judge the percentage that is free of each place; `limit` is the governor's."""
    needed = DISK_DEFAULT_PERCENT if limit is None else limit
    if not free:
        return well(Check.DISK, "no folder exists yet")
    place, percent = min(free.items(), key=lambda each: each[1])
    detail = f"{percent:.1f} % free of {place}"
    remedy = "make room, or shorten the retention (RETENTION_DAYS, FORGE_RETENTION_DAYS)"
    if percent < needed:
        return failure(Check.DISK, f"{detail}, less than {needed:g} %: nothing starts", remedy)
    if percent < 2 * needed:
        return warning(Check.DISK, f"{detail}: below {needed:g} % nothing starts", remedy)
    return well(Check.DISK, detail)


def of_caches(where: str, sizes: Sequence[int], most_bytes: int) -> Finding:
    most = f" of {most_bytes // 1024**2}" if most_bytes else ""
    return well(Check.CACHES, f"{where} works; {len(sizes)} caches, {sum(sizes) // 1024**2}{most} MiB")


def of_folders(problems: Sequence[str], folders: Sequence[str]) -> Finding:
    """Judge whether the services may write where they must."""
    if problems:
        return failure(
            Check.FOLDERS,
            "; ".join(problems),
            "give the folder to the user of the services, or name another one",
        )
    return well(Check.FOLDERS, f"{', '.join(folders)}: may be written")


def of_secrets(unreadable: Sequence[str], shared: Sequence[str], files: int) -> Finding:
    """Judge the files with passwords, keys and tokens."""
    if unreadable:
        return failure(
            Check.SECRETS, "; ".join(unreadable), "correct the setting, or let this user read the file"
        )
    if shared:
        return warning(
            Check.SECRETS, f"other users may read {', '.join(shared)}", f"chmod 600 {' '.join(shared)}"
        )
    return well(Check.SECRETS, f"{quantity(files, 'file')}: read by this user alone")


def of_egress(hosts: int, problem: str | None, accounts: Sequence[str]) -> Finding:
    """Judge the start of the proxy of untrusted jobs; its users may be no accounts."""
    if problem is not None:
        return failure(
            Check.EGRESS,
            f"the proxy of untrusted jobs does not start: {problem}",
            "run this as the orchestrator's user; it needs podman's rights: root with all user numbers, or namespaces of users",
        )
    if accounts:
        return warning(
            Check.EGRESS,
            f"{', '.join(accounts)}: accounts with numbers that are for jobs and their proxies alone",
            "give these accounts numbers below a million",
        )
    return well(Check.EGRESS, f"the proxy of untrusted jobs to {quantity(hosts, 'host')} starts")


def of_readiness(check: Check, where: str, status: int, document: dict[str, object]) -> Finding:
    """Judge a service's own answer to `/readyz`."""
    missing, notices = document.get("missing"), document.get("notices")
    if status != 200 or not isinstance(missing, dict):  # noqa: PLR2004  HTTP's OK
        named = [f"{name}: {detail}" for name, detail in missing.items()] if isinstance(missing, dict) else []
        return failure(
            check,
            f"{where} is not ready: {'; '.join(named) or f'it answered {status}'}",
            "fix what it names; it goes on by itself then",
        )
    if isinstance(notices, dict) and notices:
        shown = "; ".join(f"{name}: {detail}" for name, detail in notices.items())
        return warning(check, f"{where} is ready, and says {shown}", "do what the notice says")
    return well(check, f"{where} is ready")
