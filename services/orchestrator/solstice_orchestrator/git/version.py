"""Warn at start when this machine's git is too old for the settings."""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Final

import structlog

from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.log_events import LogEvent

log = structlog.get_logger(__name__)

OLDEST: Final = (2, 37)
"""The first version with `http.curloptResolve`; older ones ignore it and look the name up again."""
ANSWER_SECONDS: Final = 20.0


def git_problem(answer: str) -> str | None:
    """Return the problem with a git of this version output; None when there is none."""
    matched = re.match(r"git version (\d+)\.(\d+)", answer)
    if matched is None:
        return "its version is unknown"
    if (int(matched[1]), int(matched[2])) < OLDEST:
        return (
            f"older than git {OLDEST[0]}.{OLDEST[1]}, so it cannot be held to the addresses that were checked: "
            "a name that changes its address may lead it to a private one"
        )
    return None


async def warn_of_unfit_git(policy: GitPolicy) -> None:
    """Log a warning when git is missing or too old for the policy."""
    answer = ""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            with tempfile.TemporaryDirectory(prefix="git-") as name:
                git = Git(policy, Path(name) / "nothing", Path(name), 0)
                answer = (await git.run("--version")).stdout.decode("utf-8", "replace").strip()
        detail = None if policy.allow_private else git_problem(answer)
    except (CheckoutFailed, OSError, TimeoutError) as error:
        detail = str(error) or "it did not answer"
    if detail:
        log.warning(LogEvent.GIT_UNSUPPORTED, version=answer, detail=detail)
