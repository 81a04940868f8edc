"""Ask a repository which paths a push or a change request changed.

This fetches names of files, without their contents: two commits of depth 1 for a push, and before that the history of a
change request, as far as it is looked at. A server that cannot leave contents out sends more, within the limits of
planning on time and disk.
"""

from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.workflow.conditions.facts import ChangedPaths

DEPTH: Final = 200
"""How many commits back the place is looked for where a change request began."""
MAX_PATHS: Final = 10_000
_PARTIAL: Final = ("-c", "remote.origin.promisor=true", "-c", "remote.origin.partialCloneFilter=")
_TARGET: Final = "refs/solstice/target"


async def changed_paths(request: JobRequestV1, *, policy: GitPolicy, scratch: Path) -> ChangedPaths:
    """Return what the request changed, or why that is not known."""
    if request.before_sha is None and not (request.change_number and request.target_branch):
        return ChangedPaths(unknown=_without_earlier(request))
    try:
        async with fetching.bounded(policy.planning_timeout_seconds, request):
            older = request.before_sha
            if request.change_number is not None:
                older = await _merge_base(request, policy, scratch)
            if older is None:
                return ChangedPaths(
                    unknown=f"{request.target_branch} and the change have no common commit among {DEPTH}"
                )
            return await _difference(request, older, policy, scratch)
    except CheckoutFailed as error:
        return ChangedPaths(unknown=f"the repository did not say them: {error.detail[:200]}")


def _without_earlier(request: JobRequestV1) -> str:
    if request.change_number is not None:
        return "the request does not name the target branch"
    return "a new ref, or no push"


async def _merge_base(request: JobRequestV1, policy: GitPolicy, scratch: Path) -> str | None:
    """Return where the change request left its target branch.

    None when that is too far back.
    """
    async with fetching.temporary(scratch) as home:
        git = await fetching.planning_git(request, home, policy)
        target = f"refs/heads/{request.target_branch}"
        if fetching.plain_ref(_Ref(target)) is None:
            return None
        await _fetch(git, request, "tree:0", DEPTH, request.commit_sha, f"+{target}:{_TARGET}")
        found = await git.run("merge-base", request.commit_sha, _TARGET)
        return found.stdout.decode("ascii", "replace").strip() or None


async def _difference(request: JobRequestV1, older: str, policy: GitPolicy, scratch: Path) -> ChangedPaths:
    async with fetching.temporary(scratch) as home:
        git = await fetching.planning_git(request, home, policy)
        await _fetch(git, request, "blob:none", 1, older, request.commit_sha)
        # A rename counts as both of its paths.
        listed = await git.run(
            *("diff-tree", "-r", "-z", "--name-only", "--no-renames", older, request.commit_sha),
            max_output=MAX_PATHS * 4096,
        )
        if listed.returncode != 0:
            raise fetching.failure(request, listed)
        paths = [path.decode("utf-8", "surrogateescape") for path in listed.stdout.split(b"\0") if path]
        if len(paths) > MAX_PATHS:
            return ChangedPaths(unknown=f"more than {MAX_PATHS} paths changed")
        return ChangedPaths(paths=frozenset(paths))


async def _fetch(git: Git, request: JobRequestV1, leave_out: str, depth: int, *what: str) -> None:
    *options, last = _PARTIAL
    fetched = await git.run(
        *(*options, f"{last}{leave_out}", *fetching.FETCH, f"--filter={leave_out}", f"--depth={depth}"),
        *("--end-of-options", "origin", *what),
        writes=True,
    )
    if fetched.returncode != 0:
        raise fetching.failure(request, fetched)


class _Ref:
    """A ref whose spelling is to be checked."""

    def __init__(self, ref: str) -> None:
        self.ref: str | None = ref
