"""Check out a request's commit with all its files, for a job to run in."""

import asyncio
from functools import partial
from pathlib import Path

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.git.failures import reason_of_local
from solstice_orchestrator.git.fetching import (
    bounded,
    fetch_by_id,
    fetch_by_ref,
    git_message,
    new_git,
    temporary,
)
from solstice_orchestrator.git.objects.object_cache import CommitKey, ObjectCache
from solstice_orchestrator.git.objects.tree_entries import has_more_paths
from solstice_orchestrator.git.repository import LEAST_FILE_BYTES


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
    until = asyncio.get_running_loop().time() + policy.timeout_seconds
    async with temporary(scratch) as home:
        async with bounded(policy.timeout_seconds, request):
            git = await new_git(request, directory, home, policy, max_bytes=policy.max_bytes, bare=False)
            fetch, key = partial(_fetch, git, request, spec), CommitKey.of(request, policy, spec)
            await (objects.provide(key, git.git_dir, fetch) if objects else fetch())
        try:
            async with asyncio.timeout_at(until):
                done = await git.run(
                    "checkout", "--quiet", "--force", "--detach", request.commit_sha, writes=True
                )
        except TimeoutError:
            raise await _took_too_long(git, request, policy) from None
        if done.returncode != 0:
            raise CheckoutFailed(
                reason_of_local(done.errors, done.returncode),
                f"the commit cannot be checked out: {git_message(done)}",
            )


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
