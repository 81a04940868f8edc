"""Ask a repository which of two pushes came first, by its ref and its history.

This fetches commits alone, up to a limit. A server that cannot leave files out sends more, within the limits of
planning on time and disk.
"""

import re
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import Git, GitPolicy
from solstice_orchestrator.superseding.push_order import CommitAncestry, OrderQuestion

DEPTH: Final = 200
"""How many commits back an older push is still found."""
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
    """Return the ancestry of the two commits in the repository. Raises CheckoutFailed."""
    async with (
        fetching.bounded(policy.planning_timeout_seconds, request),
        fetching.temporary(scratch) as home,
    ):
        git = await fetching.planning_git(request, home, policy)
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
    shas = {name: sha for sha, name in _LINE.findall(listed.stdout.decode("ascii", "replace"))}
    return shas.get(ref)


async def _fetch(git: Git, request: JobRequestV1, question: OrderQuestion, now: str | None) -> None:
    """Fetch both commits, and the one before the push if the server still has it.

    If it gives no commit by its id, fetch the ref.
    """
    both = [question.commit_sha, question.newest_sha]
    refspecs = [[*both, question.before_sha]] if question.before_sha else []
    refspecs += [both, [request.ref]] if now is not None and request.ref else [both]
    for what in refspecs:
        fetched = await git.run(*_COMMITS_ONLY, *what, writes=True)
        if fetched.returncode == 0:
            return
        if not fetching.is_not_by_id(fetched):
            raise fetching.failure(request, fetched)


async def _is_ancestor(git: Git, older: str, newer: str) -> bool:
    """Return whether `older` is a known ancestor of `newer`; commits beyond the limit are unknown."""
    return (await git.run("merge-base", "--is-ancestor", older, newer)).returncode == 0
