"""Check out a request's commit with all its files, for a job to run in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, ChangeCommit, CheckoutSpec, Submodules
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.large_files import check_lfs, fetch_large_files
from solstice_orchestrator.git.checkouts.merge_results import merge_ref, merge_result
from solstice_orchestrator.git.checkouts.submodules import (
    MAX_SUBMODULES,
    Submodule,
    submodules_of,
    unusable,
)
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.lfs_gateway import LfsFetch
from solstice_orchestrator.git.credentials.upstream import Upstream
from solstice_orchestrator.git.failures import reason_of_local
from solstice_orchestrator.git.fetching import (
    bounded,
    fetch_by_id,
    fetch_by_ref,
    git_message,
    new_git,
    pin,
    read_credential,
    temporary,
)
from solstice_orchestrator.git.objects.object_cache import CommitKey, ObjectCache
from solstice_orchestrator.git.objects.tree_entries import has_more_paths
from solstice_orchestrator.git.repository import LEAST_FILE_BYTES

MAX_NESTING: Final = 8
"""How deep submodules of submodules may lie."""


async def check_out(
    request: JobRequestV1,
    directory: Path,
    *,
    policy: GitPolicy,
    scratch: Path,
    objects: ObjectCache | None = None,
    spec: CheckoutSpec = PLAIN_CHECKOUT,
) -> None:
    """Put the commit's files and a repository into the empty `directory`.

    The repository has as much of the history as `spec` says. `scratch` is a directory for temporary ones.
    Nothing is fetched that `objects` has. Raises CheckoutFailed.
    """
    if spec.lfs:
        check_lfs(policy)
    async with temporary(scratch) as home:
        checkout = _Checkout(directory, home, policy, objects, spec)
        ref = merge_ref(request) if spec.ref is ChangeCommit.MERGE else None
        if ref is not None:
            request = await checkout.merged(request, ref)
        await checkout.bring(request, CommitKey.of(request, policy, spec.of_commit), directory)


class _Checkout:
    """Fills one workspace, within one time limit and one disk limit."""

    def __init__(
        self, root: Path, home: Path, policy: GitPolicy, objects: ObjectCache | None, spec: CheckoutSpec
    ) -> None:
        self._root, self._home, self._policy, self._objects = root, home, policy, objects
        self._spec = spec
        self._until = asyncio.get_running_loop().time() + policy.timeout_seconds
        self._submodules = 0

    async def merged(self, request: JobRequestV1, ref: str) -> JobRequestV1:
        """Return the request for the commit that merges the change into its target branch."""
        async with bounded(self._left(), request):
            git = await new_git(
                request,
                self._home / "merge.git",
                self._home,
                self._policy,
                max_bytes=self._policy.max_bytes,
                bare=True,
                credential=self._policy.credentials.choice(request),
            )
            sha = await merge_result(git, request, ref)
        return request.model_copy(update={"commit_sha": sha, "ref": ref})

    def _left(self) -> float:
        return self._until - asyncio.get_running_loop().time()

    async def bring(
        self, request: JobRequestV1, key: CommitKey, directory: Path, *, nesting: int = 0
    ) -> None:
        """Check out one commit and its submodules."""
        git = await self._fetched(request, key, directory)
        async with self._written(git, request):
            done = await git.run(
                "checkout", "--quiet", "--force", "--detach", request.commit_sha, writes=True
            )
        if done.returncode != 0:
            raise CheckoutFailed(
                reason_of_local(done.errors, done.returncode),
                f"the commit cannot be checked out: {git_message(done)}",
            )
        if self._spec.lfs:
            await self._bring_large_files(request, key, directory)
        which = self._spec.submodules
        if which is Submodules.RECURSIVE or (which is Submodules.DIRECT and not nesting):
            async with self._written(git, request):
                submodules = await submodules_of(git, request.repo_url, request.commit_sha)
            for submodule in submodules:
                await self._bring_submodule(submodule, request, key, directory, nesting=nesting + 1)

    async def _fetched(self, request: JobRequestV1, key: CommitKey, directory: Path) -> Git:
        async with bounded(self._left(), request):
            git = await new_git(
                request,
                directory,
                self._home,
                self._policy,
                max_bytes=self._policy.max_bytes,
                bare=False,
                credential=key.credential,
                within=self._root,
            )
            fetch = partial(_fetch, git, request, self._spec)
            await (self._objects.provide(key, git.git_dir, fetch) if self._objects else fetch())
        return git

    @asynccontextmanager
    async def _written(self, git: Git, request: JobRequestV1) -> AsyncIterator[None]:
        """Raise CheckoutFailed when a local command takes too long."""
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise await _took_too_long(git, request, self._policy) from None

    async def _bring_large_files(self, request: JobRequestV1, key: CommitKey, directory: Path) -> None:
        policy = self._policy
        async with bounded(self._left(), request):
            addresses = (await pin(request, policy)).addresses
            upstream = Upstream(
                repo_url=request.repo_url, addresses=addresses, environment=policy.environment
            )
            credential = await read_credential(request, key.credential, policy)
            fetch = LfsFetch(
                upstream=upstream,
                credential=credential if isinstance(credential, HttpCredential) else None,
                max_bytes=policy.max_bytes,
                allow_private=policy.allow_private,
            )
            git = Git(policy, directory, self._home, policy.max_bytes, within=self._root)
            await fetch_large_files(git, fetch)

    async def _bring_submodule(
        self, submodule: Submodule, request: JobRequestV1, key: CommitKey, above: Path, *, nesting: int
    ) -> None:
        self._submodules += 1
        if self._submodules > MAX_SUBMODULES:
            raise unusable(
                f"the commit has more than {MAX_SUBMODULES} submodules, those of submodules included"
            )
        if nesting > MAX_NESTING:
            raise unusable(f"submodules of submodules lie deeper than {MAX_NESTING}")
        directory = above / submodule.path
        if not _is_straight(above, submodule.path):
            raise unusable(f"the path of the submodule {submodule.path[:200]} leads through a symbolic link")
        own = request.model_copy(
            update={"repo_url": submodule.repo_url, "commit_sha": submodule.commit_sha, "ref": None}
        )
        credential = self._policy.credentials.choice_of_submodule(key.credential, own)
        own_key = key._replace(repo_url=own.repo_url, commit_sha=own.commit_sha, credential=credential)
        try:
            await self.bring(own, own_key, directory, nesting=nesting)
        except CheckoutFailed as failed:
            # The commit names what cannot be had: that is no failure of its host.
            reason = Reason.COMMIT_UNUSABLE if failed.reason is Reason.COMMIT_NOT_FOUND else failed.reason
            detail = f"submodule {submodule.path[:200]}: {failed.detail}"
            raise CheckoutFailed(reason, detail, host_away=failed.host_away) from None


def _is_straight(above: Path, path: str) -> bool:
    """Return whether no part of the path is a symbolic link."""
    return (above / path).resolve() == above.resolve() / path


async def _fetch(git: Git, request: JobRequestV1, spec: CheckoutSpec) -> None:
    if not await fetch_by_id(git, request, spec):
        await fetch_by_ref(git, request, spec)
    if spec.tags:
        # One file, which the object cache keeps with the packs.
        await git.run("pack-refs", "--all", writes=True)


async def _took_too_long(git: Git, request: JobRequestV1, policy: GitPolicy) -> CheckoutFailed:
    """Return the failure of a commit that was fetched but not written in time.

    A tree with more paths than the disk limit allows is the commit's failure, however fast the disk is. With fewer
    paths, the machine or the host was too slow.
    """
    most = policy.max_bytes // LEAST_FILE_BYTES
    if await has_more_paths(git, request.commit_sha, most):
        return CheckoutFailed(
            Reason.COMMIT_UNUSABLE,
            f"the commit has more than {most} paths, which take more on disk than the limit here",
        )
    return CheckoutFailed(
        Reason.CHECKOUT_FAILED,
        f"the commit of {request.repo_url} was fetched, and not checked out within {policy.timeout_seconds:g} s",
    )
