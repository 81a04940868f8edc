"""Shared parts of all fetches: a new repository, a time limit, and the failure's reason.

| what happened | reason | tried again |
|---|---|---|
| protocol not allowed, no such repository, credentials asked for, commit not there | COMMIT_NOT_FOUND | no |
| the workflow path is a symbolic link, a directory or a submodule | INVALID_WORKFLOW | no |
| larger than allowed, more memory than allowed once it is here, refused by fsck, names that no file system holds | COMMIT_UNUSABLE | no |
| no disk, memory, processes or descriptors here, git missing | MACHINE_FAILED | yes, elsewhere, without counting |
| the forge gives no token before a rate limit ends, or its API is away | HOST_AWAY | yes, without counting |
| host unreachable, time limit, broken transfer, anything else | CHECKOUT_FAILED | yes |
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobRequestV1
from solstice_common.runtime.private_paths import restore_private_directory
from solstice_common.values.repo_urls import canonical
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.addresses import AddressPin, AddressRefused, pinned
from solstice_orchestrator.git.command import (
    GIT_CONFIG,
    SSH,
    CheckoutFailed,
    Git,
    GitPolicy,
    GitResult,
    stderr_tail,
)
from solstice_orchestrator.git.credentials.credential_rules import CredentialChoice, WithheldCredential
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential, UnusableCredential
from solstice_orchestrator.git.credentials.proxy_choice import proxy_of
from solstice_orchestrator.git.credentials.ssh_agent import SshCredential
from solstice_orchestrator.git.failures import GitErrors, is_past_memory, reason_of
from solstice_orchestrator.git.repository import (
    object_format,
    write_repository,
)

REF_DEPTH: Final = 100
BARE: Final = "bare.git"
"""The name of a bare repository in a temporary directory."""

_FETCH: Final = ("fetch", "--quiet", "--no-recurse-submodules", "--no-write-fetch-head")
FETCH: Final = (*_FETCH, "--no-tags")
_FOLLOWED: Final = "refs/solstice/commit"
"""git gets the tags of commits that it fetches into a ref."""
_REF: Final = re.compile(r"refs/[A-Za-z0-9._/@-]{1,250}")
_NOT_BY_ID: Final = re.compile(
    r"not our ref|unadvertised object|couldn't find remote ref|dumb http transport does not support|"
    r"does not support shallow|no such remote ref|unable to find remote ref",
    re.IGNORECASE,
)
_NOT_THERE: Final = re.compile(
    r"repository '.*' not found|does not appear to be a git repository|repository not found|"
    r"could not read Username|could not read Password|Authentication failed|terminal prompts disabled|"
    r"Permission denied \(|returned error: 40[134]|transport '.*' not allowed|not exported|access denied|"
    r"does not exist",
    re.IGNORECASE,
)
_REDIRECT: Final = re.compile(r"returned error: 30[1278]")
_UNREACHABLE: Final = re.compile(
    r"unable to access '|Could not resolve host|unable to look up|unable to connect to|Could not read from remote repository",
    re.IGNORECASE,
)
"""Messages from before any commit is requested."""


class HasUrl(Protocol):
    """A value with the URL of a repository."""

    @property
    def repo_url(self) -> str: ...


class HasRef(Protocol):
    """A value that may have a ref."""

    @property
    def ref(self) -> str | None: ...


async def new_git(
    request: JobRequestV1,
    directory: Path,
    home: Path,
    policy: GitPolicy,
    *,
    max_bytes: int,
    bare: bool,
    credential: CredentialChoice,
    within: Path | None = None,
) -> Git:
    """Make an empty repository in `directory` with its remote, and return git for it.

    All in `within` counts for `max_bytes`; without it, all in `directory`. Raises CheckoutFailed for a protocol or an
    address that is not allowed.
    """
    check_protocol(request.repo_url, policy)
    git = Git(policy, directory, home, max_bytes, repo_url=request.repo_url, bare=bare, within=within)
    write_repository(
        git.git_dir, url=request.repo_url, object_format=object_format(request.commit_sha), bare=bare
    )
    await give_credential(git, request, credential, policy)
    return git


async def planning_git(request: JobRequestV1, home: Path, policy: GitPolicy) -> Git:
    """Return git for a bare repository in `home`, within the limits of planning.

    Raises as `new_git`.
    """
    return await new_git(
        request,
        home / BARE,
        home,
        policy,
        max_bytes=policy.planning_max_bytes,
        bare=True,
        credential=policy.credentials.choice(request),
    )


async def give_credential(git: Git, fetch: HasUrl, choice: CredentialChoice, policy: GitPolicy) -> None:
    """Let git fetch from the checked addresses, with the credential that was chosen.

    Raises CheckoutFailed for an address that is not allowed, and for a credential that cannot be read.
    """
    addresses = await pin(fetch, policy)
    note = choice.detail if isinstance(choice, WithheldCredential) else ""
    git.use(addresses, await read_credential(fetch, choice, policy), note=note)


async def read_credential(
    fetch: HasUrl, choice: CredentialChoice, policy: GitPolicy
) -> HttpCredential | SshCredential | None:
    """Return the credential that was chosen; raises CheckoutFailed when it cannot be read."""
    if choice is None or isinstance(choice, WithheldCredential):
        return None
    try:
        # git itself may use any kind of proxy, but here it gets to the gateway alone.
        proxy_of(fetch.repo_url, policy.environment)
    except ConfigurationError as error:
        raise CheckoutFailed(
            Reason.CHECKOUT_FAILED, f"{fetch.repo_url} is not fetched with its credential: {error}"
        ) from None
    try:
        return await policy.credentials.read(choice, fetch.repo_url)
    except UnusableCredential as error:
        reason = Reason.HOST_AWAY if error.is_for_now else Reason.CHECKOUT_FAILED
        raise CheckoutFailed(reason, f"there is no credential for {fetch.repo_url}: {error}") from None


async def pin(request: HasUrl, policy: GitPolicy) -> AddressPin:
    """Return the pin to the addresses of the repository's host.

    Raises CheckoutFailed when they are not allowed.
    """
    if policy.allow_private:
        return AddressPin()
    try:
        return await pinned(request.repo_url, SSH)
    except AddressRefused as refused:
        raise CheckoutFailed(
            Reason.COMMIT_NOT_FOUND, f"{request.repo_url} is not fetched from: {refused}"
        ) from None
    except OSError as error:
        message = f"unable to access '{request.repo_url}': Could not resolve host ({error.strerror})"
        raise failure(
            request,
            GitResult(returncode=128, stdout=b"", errors=GitErrors(stderr=message, is_host_away=True)),
        ) from None


def check_protocol(repo_url: str, policy: GitPolicy) -> None:
    """Raise CheckoutFailed for a forbidden protocol or a URL that is not canonical.

    Rules could read a URL that is not canonical in another way than git does.
    """
    scheme = repo_url.partition("://")[0]
    if scheme not in policy.protocols:
        raise CheckoutFailed(
            Reason.COMMIT_NOT_FOUND,
            f"the protocol {scheme!r} of {repo_url} is not allowed here; GIT_PROTOCOLS allows "
            f"{', '.join(policy.protocols)}",
        )
    try:
        plain = canonical(repo_url)
    except ValueError as error:
        raise CheckoutFailed(
            Reason.COMMIT_NOT_FOUND, f"nothing is fetched from {repo_url}: it {error}"
        ) from None
    if plain != repo_url:
        raise CheckoutFailed(Reason.COMMIT_NOT_FOUND, f"nothing is fetched from {repo_url}: write it {plain}")


async def fetch_by_id(git: Git, request: JobRequestV1, spec: CheckoutSpec = PLAIN_CHECKOUT) -> bool:
    """Fetch just the commit, and as much of its history as `spec` says.

    Return False when the server gives nothing by its id.
    """
    depth = (f"--depth={spec.depth}",) if spec.depth else ()
    fetched = await git.run(
        *_with_tags(spec, *depth, "--end-of-options", "origin", request.commit_sha), writes=True
    )
    if fetched.returncode != 0 and not is_not_by_id(fetched):
        raise failure(request, fetched)
    return fetched.returncode == 0


async def fetch_by_ref(git: Git, request: JobRequestV1, spec: CheckoutSpec = PLAIN_CHECKOUT) -> None:
    """Fetch the commit with its ref, else with all branches.

    Its history has at least the depth that `spec` says.
    """
    for wider in _wider(request, spec.depth):
        fetched = await git.run(*_with_tags(spec, *wider), writes=True)
        if fetched.returncode != 0 and not is_not_by_id(fetched):
            raise failure(request, fetched)
        there = await git.run("cat-file", "-e", f"{request.commit_sha}^{{commit}}")
        if there.returncode == 0:
            return
    raise CheckoutFailed(
        Reason.COMMIT_NOT_FOUND,
        f"the commit {request.commit_sha} is not (or no longer) in {request.repo_url}",
        may_appear=True,
    )


def _with_tags(spec: CheckoutSpec, *arguments: str) -> tuple[str, ...]:
    """Return a fetch of the last argument, with tags where `spec` says so."""
    if not spec.tags:
        return (*FETCH, *arguments)
    *before, what = arguments
    return (*_FETCH, *before, what if ":" in what else f"+{what}:{_FOLLOWED}")


def _wider(request: JobRequestV1, depth: int) -> Sequence[tuple[str, ...]]:
    """Return further fetches for servers that give nothing by id, the cheapest first."""
    by_ref: list[tuple[str, ...]] = []
    if ref := plain_ref(request):
        by_ref = [("--end-of-options", "origin", ref)]
        if depth:
            by_ref.insert(0, (f"--depth={REF_DEPTH + depth - 1}", *by_ref[0]))
    return [*by_ref, ("--end-of-options", "origin", "+refs/heads/*:refs/remotes/origin/*")]


def plain_ref(request: HasRef) -> str | None:
    """Return the request's ref if it is a plain ref name, else None.

    git would read other forms as more than a name.
    """
    ref = request.ref
    return ref if ref and _REF.fullmatch(ref) and ".." not in ref else None


def is_not_by_id(result: GitResult[Any]) -> bool:
    """Whether the server refused to give an object by its id, which it may have."""
    return _NOT_BY_ID.search(result.stderr) is not None


def is_of_repository(result: GitResult[Any]) -> bool:
    """Return whether a fetch failed in a way that every fetch of the repository would."""
    return bool(_NOT_THERE.search(result.stderr) or _UNREACHABLE.search(result.stderr))


def failure(request: HasUrl, result: GitResult[Any]) -> CheckoutFailed:
    """Return the failure of a fetch, derived from git's output."""
    message = git_message(result)
    if reason_of(result.errors) is Reason.MACHINE_FAILED:
        return CheckoutFailed(Reason.MACHINE_FAILED, f"git failed on this machine: {message}")
    if _NOT_THERE.search(result.stderr) and not result.errors.is_credential_replaced:
        return CheckoutFailed(
            Reason.COMMIT_NOT_FOUND,
            f"{request.repo_url} cannot be read: it is not there, or not for us without credentials ({message})",
        )
    if is_past_memory(result.errors):
        message = f"git needed more memory than it may have here ({message})"
    elif _REDIRECT.search(result.stderr):
        message = f"{message}; redirects are not followed: name the URL that it has now"
    return CheckoutFailed(
        reason_of(result.errors),
        f"fetching from {request.repo_url} failed: {message}",
        host_away=result.errors.is_host_away,
    )


def git_message(result: GitResult[Any]) -> str:
    """Return the end of git's output and any trouble on the way, as one line."""
    message = stderr_tail(result.stderr) or f"git ended with {result.returncode} and said nothing"
    return f"{message}; {result.errors.trouble}" if result.errors.trouble else message


@asynccontextmanager
async def bounded(seconds: float, request: HasUrl) -> AsyncIterator[asyncio.Timeout]:
    """Raise CheckoutFailed when the body takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield limit
    except TimeoutError:
        raise CheckoutFailed(
            Reason.CHECKOUT_FAILED,
            f"fetching from {request.repo_url} took longer than {round(seconds, 1):g} s",
            host_away=True,
        ) from None


@asynccontextmanager
async def temporary(scratch: Path) -> AsyncIterator[Path]:
    """Make a new directory in `scratch`, and remove it after leaving.

    A thread removes what is in it, and no caller waits for that; the end of the event loop's run does. No thread is
    needed for git's configuration alone.
    """
    home = _new_directory(scratch)
    try:
        yield home
    finally:
        if not _removed_at_once(home):
            remove = partial(shutil.rmtree, home, ignore_errors=True)
            asyncio.get_running_loop().run_in_executor(None, remove)


def _removed_at_once(home: Path) -> bool:
    """Remove a directory that holds git's configuration and an empty repository alone.

    False for any other.
    """
    try:
        (home / BARE).rmdir()
        (home / GIT_CONFIG).unlink()
        home.rmdir()
    except OSError:
        return False
    return True


def _new_directory(scratch: Path) -> Path:
    # A job runs as our user, and may have removed or closed it, the orchestrator's directory above it, or WORKSPACES.
    restore_private_directory(scratch, above=2)
    return Path(tempfile.mkdtemp(prefix="git-", dir=scratch))
