"""Check the directories in which files of jobs are kept: artifacts and caches."""

import asyncio
import tempfile
from pathlib import Path

from solstice_cli.doctor import findings
from solstice_cli.doctor.findings import Check, Finding
from solstice_cli.doctor.setup_settings import SetupSettings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.opening.factories import artifacts_of
from solstice_orchestrator.worker.caches.configured_caches import caches_of

MIB = 1024**2


def artifacts(settings: SetupSettings) -> Finding:
    """Return whether artifacts can be kept, and how much room is left for them; blocks."""
    keeping = artifacts_of(settings)
    directory, limits = keeping.directory, keeping.limits
    if problem := unwritable(directory.path):
        return findings.failure(
            Check.ARTIFACTS,
            f"jobs with artifacts end as errored: nothing can be written in {problem}",
            "correct ARTIFACT_DIRECTORY; it must be writable for all orchestrators of the store, and the same for all",
        )
    if not directory.exists:
        return findings.well(
            Check.ARTIFACTS, f"{directory.path} is not there yet: the first artifact makes it"
        )
    left = (directory.free_bytes() - limits.reserve_bytes) // MIB
    if left < limits.most_bytes // MIB:
        return findings.warning(
            Check.ARTIFACTS,
            f"{directory.path}: {max(left, 0)} MiB are left for artifacts, and one may have {limits.most_bytes // MIB} MiB",
            "make room on its disk, or lower ARTIFACT_DAYS, ARTIFACT_MAX_MIB or ARTIFACT_DISK_MIB",
        )
    return findings.well(Check.ARTIFACTS, f"{directory.path} works; {left} MiB are left")


async def caches(settings: SetupSettings, seconds: float) -> Finding:
    """Return whether caches can be written, read and listed, and how much room they take."""
    folder = settings.cache_directory.expanduser()
    try:
        store = caches_of(settings)
        if not (settings.cache_bucket or folder.exists() or unwritable(folder)):
            return findings.well(Check.CACHES, f"{folder} is not there yet: the first cache makes it")
        async with asyncio.timeout(seconds):
            sizes = [used.entry.size for used in await asyncio.to_thread(store.try_out)]
    except ConfigurationError as error:
        return findings.failure(
            Check.CACHES, str(error), "correct it: no orchestrator starts with this setting"
        )
    except (OSError, TimeoutError) as error:
        where, detail = store.objects.place, str(error) or "it did not answer in time"
        return findings.warning(
            Check.CACHES, f"jobs find no caches: {where}: {detail}", "let the orchestrator write there"
        )
    return findings.of_caches(store.objects.place, sizes, store.limits.all_bytes)


def unwritable(folder: Path) -> str | None:
    """Return why nothing can be written there; the services make a missing folder."""
    there = folder if folder.is_dir() else next(each for each in folder.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        return f"{there}: {error.strerror or error}"
