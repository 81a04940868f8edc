"""Which of two pushes came first, asked of the repository: what the ref points at, and whose history holds whom.

Commits alone are fetched, and no more of them than a limit; a server that cannot leave files out sends more, within the
limits of planning on time and disk.
"""

import re
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import Git, GitPolicy
from solstice_orchestrator.superseding.push_order import CommitAncestry, OrderQuestion

DEPTH: Final = 200
"""How far back a push may have been to be known for an older one."""
_COMMITS_ONLY: Final = (
    *("-c", "remote.origin.promisor=true", "-c", "remote.origin.partialCloneFilter=tree:0"),
    *fetching.FETCH,
    "--filter=tree:0",
    f"--depth={DEPTH}",
    "--end-of-options",
    "origin",
)
_LINE: Final = re.compile(r"([0-9a-f]{40,64})\t(\S+)")


async def ask_repository(
    request: JobRequestV1, question: OrderQuestion, *, policy: GitPolicy, scratch: Path
) -> CommitAncestry:
    """What the repository of the request says. Raises CheckoutFailed."""
    async with (
        fetching.bounded(policy.planning_timeout_seconds, request),
        fetching.temporary(scratch) as home,
    ):
        git = await fetching.new_git(
            request, home / "bare.git", home, policy, max_bytes=policy.planning_max_bytes, bare=True
        )
        now = await _now(git, request)
        if now in {question.commit_sha, question.newest_sha}:
            return CommitAncestry(now=now)
        await _fetch(git, request, question, now)
        return CommitAncestry(
            now=now,
            in_newest=await _is_ancestor(git, question.commit_sha, question.newest_sha),
            has_newest=await _is_ancestor(git, question.newest_sha, question.commit_sha),
            goes_back=question.before_sha is not None
            and await _is_ancestor(git, question.commit_sha, question.before_sha),
        )


async def _now(git: Git, request: JobRequestV1) -> str | None:
    ref = fetching.plain_ref(request)
    if ref is None:
        return None
    listed = await git.run("ls-remote", "--quiet", "--end-of-options", "origin", ref)
    if listed.returncode != 0:
        raise fetching.failure(request, listed)
    found = {name: sha for sha, name in _LINE.findall(listed.stdout.decode("ascii", "replace"))}
    return found.get(ref)


async def _fetch(git: Git, request: JobRequestV1, question: OrderQuestion, now: str | None) -> None:
    """Bring what can be had: both commits, and what was there before the push where it still is; else what the ref holds."""
    both = [question.commit_sha, question.newest_sha]
    wanted = [[*both, question.before_sha]] if question.before_sha else []
    wanted += [both, [request.ref]] if now is not None and request.ref else [both]
    for what in wanted:
        fetched = await git.run(*_COMMITS_ONLY, *what, writes=True)
        if fetched.returncode == 0:
            return
        if not fetching.is_not_by_id(fetched):
            raise fetching.failure(request, fetched)


async def _is_ancestor(git: Git, older: str, newer: str) -> bool:
    """Whether that is known here: what is not here, or beyond the limit, is nobody's ancestor."""
    return (await git.run("merge-base", "--is-ancestor", older, newer)).returncode == 0
