"""A commit, whole, from the repository that a request names: what a job runs in."""

from pathlib import Path

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy, last_words
from solstice_orchestrator.git.failures import of_words
from solstice_orchestrator.git.fetching import bounded, fetch_by_id, fetch_by_ref, new_git, temporary


async def check_out(request: JobRequestV1, directory: Path, *, policy: GitPolicy, scratch: Path) -> None:
    """Put the commit's files, and a repository of just this commit, into the empty `directory`.

    `scratch` is a directory for temporary ones. Raises CheckoutFailed.
    """
    async with bounded(policy.timeout_seconds, request), temporary(scratch) as home:
        git = await new_git(request, directory, home, policy, max_bytes=policy.max_bytes, bare=False)
        if not await fetch_by_id(git, request):
            await fetch_by_ref(git, request)
        done = await git.run("checkout", "--quiet", "--force", "--detach", request.commit_sha, writes=True)
        if done.returncode != 0:
            raise CheckoutFailed(
                of_words(done.stderr), f"the commit cannot be checked out: {last_words(done.stderr)}"
            )
