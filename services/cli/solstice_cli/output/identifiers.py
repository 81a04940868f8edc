"""Reads ids as people type them.

They may be whole, or the beginning or the end of exactly one run or job.
"""

import re
from typing import Final, Literal

from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.errors import ConfigurationError, ServiceRefused

Kind = Literal["run", "job"]

WHOLE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PART: Final = re.compile(r"[0-9a-f-]{4,}")
SEARCHED: Final = 200
"""A part of an id is looked for among this many of the newest runs and jobs: as many as the API returns at once."""
NOT_FOUND: Final = 404


async def find(
    api: OrchestratorClient, typed: str, kinds: tuple[Kind, ...] = ("run", "job")
) -> tuple[Kind, Document]:
    """Return the run or job that `typed` names, and which of the two it is.

    Raises ConfigurationError when it cannot be an id or fits several, ServiceRefused when nothing fits.
    """
    text = typed.strip().lower()
    if WHOLE.fullmatch(text):
        for kind in kinds:
            document = await _get(api, kind, text)
            if document is not None:
                return kind, document
        raise ServiceRefused(NOT_FOUND, "not_found", f"there is no {' or '.join(kinds)} {text} at {api.url}")
    if not PART.fullmatch(text):
        raise ConfigurationError(
            f"{typed!r} is no id: give at least its first or last four characters (0-9, a-f), "
            "as 'solstice runs' and 'solstice jobs' show them"
        )
    fitting = [
        (kind, candidate)
        for kind in kinds
        for candidate in await _ids(api, kind)
        if candidate.startswith(text) or candidate.endswith(text)
    ]
    if len(fitting) > 1:
        several = ", ".join(f"{kind} {candidate}" for kind, candidate in fitting[:5])
        raise ConfigurationError(f"{typed!r} fits {len(fitting)} ids: {several}. Type more of it.")
    if not fitting:
        raise ServiceRefused(
            NOT_FOUND,
            "not_found",
            f"no {' or '.join(kinds)} id begins or ends with {typed!r} among the newest {SEARCHED} at {api.url}: "
            "give the whole id",
        )
    kind, candidate = fitting[0]
    document = await _get(api, kind, candidate)
    if document is None:
        raise ServiceRefused(NOT_FOUND, "not_found", f"the {kind} {candidate} is gone")
    return kind, document


async def _get(api: OrchestratorClient, kind: Kind, identifier: str) -> Document | None:
    try:
        return await (api.run(identifier) if kind == "run" else api.job(identifier))
    except ServiceRefused as refused:
        if refused.status == NOT_FOUND:
            return None
        raise


async def _ids(api: OrchestratorClient, kind: Kind) -> list[str]:
    if kind == "job":
        return [job["job_id"] for job in (await api.jobs(limit=SEARCHED))["jobs"]]
    return [run["run_id"] for run in (await api.runs(limit=SEARCHED))["runs"]]
