"""Find the forge's merge of a change request into its target branch.

A forge makes it some seconds after a push. Until then its ref is absent, or has the merge of an older head.
"""

import asyncio
import re
from typing import Final, NamedTuple

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import CheckoutFailed, Git

WAIT_SECONDS: Final = 20.0
"""How long the merge of a new head may take."""
PAUSE_SECONDS: Final = 2.0
_HEAD: Final = re.compile(r"(refs/(?:pull|merge-requests)/[0-9]+)/head")
_COPY: Final = "refs/solstice/merge"
_COMMIT_ONLY: Final = (
    *("-c", "remote.origin.promisor=true", "-c", "remote.origin.partialCloneFilter=tree:0"),
    *(*fetching.FETCH, "--filter=tree:0", "--depth=1", "--end-of-options", "origin"),
)
_PARENT: Final = re.compile(r"^parent ([0-9a-f]{40,64})$", re.MULTILINE)
WITHOUT_MERGES: Final = frozenset({Source.FORGEJO, Source.GITEA})
"""Forges that keep no merge results: nothing is waited for there. A ref that is there counts nevertheless."""


class _Merge(NamedTuple):
    """The commit at a ref, and its parents."""

    sha: str
    parents: tuple[str, ...]


def merge_ref(request: JobRequestV1) -> str | None:
    """Return the ref of the merge result; None for a request of no change.

    Raises CheckoutFailed for a change whose ref is unknown.
    """
    if head := _HEAD.fullmatch(request.ref or ""):
        return f"{head[1]}/merge"
    if request.change_number is None:
        return None
    raise CheckoutFailed(
        Reason.COMMIT_UNUSABLE,
        f"there is no merge result: {request.ref} is no ref of a change request's head",
    )


async def merge_result(git: Git, request: JobRequestV1, ref: str) -> str:
    """Return the commit that merges the request's commit; `git` is for an empty repository.

    Raises CheckoutFailed, also when there is none within WAIT_SECONDS.
    """
    wait_seconds = 0.0 if request.source in WITHOUT_MERGES else WAIT_SECONDS
    until = asyncio.get_running_loop().time() + wait_seconds
    while True:
        merged = await _merge_at(git, request, ref)
        if merged is not None and request.commit_sha in merged.parents:
            return merged.sha
        if asyncio.get_running_loop().time() + PAUSE_SECONDS > until:
            raise CheckoutFailed(Reason.COMMIT_UNUSABLE, _why_not(request, ref, merged))
        await asyncio.sleep(PAUSE_SECONDS)


async def _merge_at(git: Git, request: JobRequestV1, ref: str) -> _Merge | None:
    fetched = await git.run(*_COMMIT_ONLY, f"+{ref}:{_COPY}", writes=True)
    if fetched.returncode != 0:
        if fetching.is_not_by_id(fetched):
            return None
        raise fetching.failure(request, fetched)
    named = await git.run("rev-parse", "--verify", "--quiet", f"{_COPY}^{{commit}}")
    sha = named.stdout.decode("ascii", "replace").strip()
    commit = await git.run("cat-file", "commit", sha)
    header = commit.stdout.decode("utf-8", "replace").partition("\n\n")[0]
    return _Merge(sha, tuple(_PARENT.findall(header)))


def _why_not(request: JobRequestV1, ref: str, merged: _Merge | None) -> str:
    if merged is not None:
        return (
            f"{ref} merges another commit than {request.commit_sha}: a newer commit has come, or this one conflicts "
            "with its target branch"
        )
    if request.source in WITHOUT_MERGES:
        return f'{request.source} keeps no merge results, and {ref} is not there: use ref="head"'
    return f"{ref} is not there: the change conflicts with its target branch, or the forge keeps no merge results"
