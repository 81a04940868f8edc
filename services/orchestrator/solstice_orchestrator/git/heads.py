"""Look up the commit of a branch at its server, without fetching anything."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import Git, GitPolicy
from solstice_orchestrator.git.repository import write_repository

LIST_SECONDS: Final = 30.0
"""The time limit; it is shorter than every lease under which this runs."""
MAX_OUTPUT: Final = 1024 * 1024
_LINE: Final = re.compile(r"^([0-9a-f]{40}|[0-9a-f]{64})\t(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A ref of a repository, by its full name."""

    repo_url: str
    ref: str


async def head_of(branch: Branch, *, policy: GitPolicy, scratch: Path) -> str | None:
    """Return the full id of the branch's commit; None when there is no such ref.

    For an annotated tag, this is the commit that it names. Raises CheckoutFailed.
    """
    ref = fetching.plain_ref(branch)
    if ref is None:
        return None
    fetching.check_protocol(branch.repo_url, policy)
    seconds = min(LIST_SECONDS, policy.planning_timeout_seconds)
    async with fetching.bounded(seconds, branch), fetching.temporary(scratch) as home:
        git = Git(
            policy,
            home / fetching.BARE,
            home,
            policy.planning_max_bytes,
            repo_url=branch.repo_url,
            bare=True,
        )
        # The format of the repository's ids is not known yet; git uses the one that the server names.
        write_repository(git.git_dir, url=branch.repo_url, object_format="sha1", bare=True)
        choice = policy.credentials.choice_of_schedule(branch.repo_url)
        await fetching.give_credential(git, branch, choice, policy)
        listed = await git.run(
            "ls-remote", "--quiet", "--end-of-options", "origin", ref, f"{ref}^{{}}", max_output=MAX_OUTPUT
        )
    if listed.returncode != 0:
        raise fetching.failure(branch, listed)
    shas = {name: sha for sha, name in _LINE.findall(listed.stdout.decode("ascii", "replace"))}
    return shas.get(f"{ref}^{{}}") or shas.get(ref)
