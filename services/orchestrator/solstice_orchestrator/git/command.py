"""Run git safely on untrusted repositories, with limits on time, memory and disk.

Few protocols are allowed, and no prompts, hooks or foreign configuration.
"""

import asyncio
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from solstice_common.errors import SolsticeError
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.addresses import AddressPin
from solstice_orchestrator.git.credentials.fetch_gateway import CredentialedFetch, open_gateway
from solstice_orchestrator.git.credentials.git_credentials import (
    NO_CREDENTIALS,
    GitCredentials,
    HttpCredential,
)
from solstice_orchestrator.git.credentials.local_proxy import open_local_proxy
from solstice_orchestrator.git.credentials.proxy_choice import (
    PROXY_VARIABLES,
    proxied_fetch,
    without_passwords,
)
from solstice_orchestrator.git.credentials.ssh_agent import SshCredential, open_agent
from solstice_orchestrator.git.credentials.upstream import Upstream
from solstice_orchestrator.git.failures import GitErrors, read_events, read_formats
from solstice_orchestrator.git.host_contact import SSH_FAILED, is_host_away
from solstice_orchestrator.git.repository import CONFIG, OWNERSHIP, directory_bytes, has_few_entries
from solstice_orchestrator.processes.children import Child, child, side_output

T = TypeVar("T")

PASSED_ON: Final = frozenset(
    {
        "PATH",
        *PROXY_VARIABLES,
        "no_proxy",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "GIT_SSL_CAINFO",
        "SSH_AUTH_SOCK",
    }
)
"""The variables of the orchestrator's environment that git gets, except for proxies with passwords."""

GIT_CONFIG: Final = "gitconfig"
"""The name of the file in `home` that git reads its configuration from."""
STDERR_BYTES: Final = 64 * 1024
TRACE_BYTES: Final = 256 * 1024
"""The most bytes kept of git's own events (git-scm.com/docs/api-trace2), which name its errors unforgeably."""
WATCH_SECONDS: Final = 0.25
"""How often git's directory is measured while git writes. Shorter commands are measured at their end."""

SSH: Final = (
    'run_ssh() { ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15 "$@"; ended=$?; '
    f"""[ $ended -ne 255 ] || echo '{{"event":"error","fmt":"{SSH_FAILED}"}}' >> "$GIT_TRACE2_EVENT"; """
    "return $ended; }; run_ssh"
)
"""The command to which git adds its arguments. ssh's exit code tells its own failures from those of the repository,
and git would not pass it on."""
LIMITED: Final = 'ulimit -d "$0" && '
"""Limits the allocated memory of git and its children, in KiB. Mapped files do not count."""
ALONE: Final = 'exec "$@"'
THEN: Final = '"$@" < /dev/null > /dev/null && echo && exec {}'
"""Runs two commands; the empty line says that the first has succeeded."""


class CheckoutFailed(SolsticeError):
    """The commit, or a file of it, could not be fetched.

    `reason` is CHECKOUT_FAILED or HOST_AWAY when a later try may help, MACHINE_FAILED when a try elsewhere may, and
    COMMIT_NOT_FOUND, COMMIT_UNUSABLE or INVALID_WORKFLOW when neither will. `may_appear`: the repository exists and
    only the commit is absent, and it may appear within seconds. `host_away`: the host gave no answer, or failed itself;
    any other answer, even an error or a redirect, is none of the host's failures.
    """

    def __init__(
        self, reason: Reason, detail: str, *, may_appear: bool = False, host_away: bool = False
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.may_appear = may_appear
        self.host_away = host_away


@dataclass(frozen=True, slots=True, kw_only=True)
class GitPolicy:
    """The protocols and limits of git on this worker."""

    protocols: tuple[str, ...] = ("https", "http", "ssh")
    timeout_seconds: float = 600.0
    """The time limit of a whole checkout."""
    max_bytes: int = 4 * 1024**3
    """The disk limit of a checkout."""
    cache_max_bytes: int = 1024**3
    """The disk limit of the objects that are kept for further checkouts; 0: none are."""
    planning_timeout_seconds: float = 60.0
    planning_max_bytes: int = 256 * 1024**2
    """The disk limit for a workflow file; a server without `--filter` sends the whole commit."""
    max_memory_bytes: int = 1024**3
    """The memory limit of each git process in a checkout."""
    planning_max_memory_bytes: int = 384 * 1024**2
    allow_private: bool = True
    """Whether repositories may have addresses outside the internet; the setting is off by default."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The orchestrator's environment, of which git gets only PASSED_ON."""
    credentials: GitCredentials = NO_CREDENTIALS


@dataclass(frozen=True, slots=True, kw_only=True)
class GitResult(Generic[T]):
    """The exit code and the output of a git command."""

    returncode: int
    stdout: T
    errors: GitErrors = field(default_factory=GitErrors)

    @property
    def stderr(self) -> str:
        """Git's standard error, which may quote the commit's file names and the server."""
        return self.errors.stderr


class Git:
    """Runs git on one repository; `home` is only the place of its configuration.

    The repository is `directory` itself when it is bare, else its `.git`. All in `within`, or else in `directory`, counts
    for `max_bytes`. git reaches the host of `repo_url` through a local proxy when the real one has a password, and
    through a gateway when a credential is used.
    """

    def __init__(
        self,
        policy: GitPolicy,
        directory: Path,
        home: Path,
        max_bytes: int,
        *,
        repo_url: str = "",
        bare: bool = False,
        within: Path | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.git_dir = directory if bare else directory / ".git"
        self._directory, self._max_bytes = directory, max_bytes
        self._measured = within or directory
        self._max_memory = policy.planning_max_memory_bytes if bare else policy.max_memory_bytes
        self._options: tuple[str, ...] = ()
        self._policy, self._repo_url = policy, repo_url
        self._proxied = proxied_fetch(repo_url, policy.environment)
        self._credentialed: CredentialedFetch | None = None
        self._ssh_credential: SshCredential | None = None
        self._note = ""
        config = home / GIT_CONFIG
        config.write_text(CONFIG + (OWNERSHIP if "file" in policy.protocols else ""), encoding="utf-8")
        self._environment = {
            "PATH": os.defpath,
            **{
                name: value
                for name, value in without_passwords(policy.environment).items()
                if name in PASSED_ON
            },
            "HOME": str(home),
            "LC_ALL": "C",
            "GIT_ALLOW_PROTOCOL": ":".join(policy.protocols),
            "GIT_ASKPASS": "true",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(directory.parent),
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": str(self.git_dir),
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            # For git's own server; a client says what it speaks by itself.
            "GIT_PROTOCOL": "version=2",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_SSH_COMMAND": SSH,
            "GIT_SSH_VARIANT": "ssh",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_TRACE2_EVENT_BRIEF": "1",
            **({} if bare else {"GIT_WORK_TREE": str(directory)}),
            "SSH_ASKPASS": "true",
        }

    def use(
        self, pin: AddressPin, credential: HttpCredential | SshCredential | None = None, *, note: str = ""
    ) -> None:
        """Let git connect only to the addresses of `pin` from now on, with the credential.

        `note` explains a failure of the fetch.
        """
        self._options, self._note = pin.options, note
        self._environment.update(pin.environment)
        if isinstance(credential, SshCredential):
            self._ssh_credential = credential
        elif credential is not None:
            upstream = Upstream(
                repo_url=self._repo_url, addresses=pin.addresses, environment=self._policy.environment
            )
            self._credentialed, self._proxied = (
                CredentialedFetch(credential=credential, upstream=upstream),
                None,
            )
            # The gateway is reached by http; no repository is.
            self._environment["GIT_ALLOW_PROTOCOL"] = ":".join({*self._policy.protocols, "http"})

    def _command(self, arguments: Sequence[str], then: Sequence[str] = ()) -> Sequence[str]:
        git = shutil.which("git", path=self._environment["PATH"])
        if git is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git")
        command = (git, *self._options, *arguments)
        script = THEN.format(shlex.join((git, *then))) if then else ALONE
        if sys.platform.startswith("linux"):
            script = LIMITED + script
        elif not then:
            return command
        return ("/bin/sh", "-c", script, str(self._max_memory // 1024), *command)

    async def run(
        self, *arguments: str, input_bytes: bytes = b"", max_output: int = 64 * 1024, writes: bool = False
    ) -> GitResult[bytes]:
        """Run a git command as `converse` does, keeping `max_output` bytes of its output."""
        read = partial(_read, limit=max_output)
        return await self.converse(*arguments, input_bytes=input_bytes, read=read, writes=writes)

    async def converse(
        self,
        *arguments: str,
        input_bytes: bytes,
        read: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]],
        writes: bool = False,
    ) -> GitResult[T]:
        """Run a git command to its end; `read` must read all of its output.

        Raises CheckoutFailed when git cannot be started, and when it `writes` and its directory exceeds its limit.
        Cancelling this kills git and its children.
        """
        return await self._converse(arguments, (), input_bytes=input_bytes, read=read, writes=writes)

    async def run_then(
        self,
        arguments: Sequence[str],
        then: Sequence[str],
        *,
        input_bytes: bytes,
        read: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]],
    ) -> GitResult[T | None]:
        """Run a command that writes and, if it succeeds, converse with a second one.

        The result is that of the command that ended last; its output is None when that was the first one. This takes
        one process of ours instead of two. Raises CheckoutFailed as `converse` does.
        """

        async def read_second(stream: asyncio.StreamReader) -> T | None:
            return await read(stream) if await stream.readline() else None

        return await self._converse(arguments, then, input_bytes=input_bytes, read=read_second, writes=True)

    async def _converse(
        self,
        arguments: Sequence[str],
        then: Sequence[str],
        *,
        input_bytes: bytes,
        read: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]],
        writes: bool,
    ) -> GitResult[T]:
        outgrown = False
        try:
            with side_output(TRACE_BYTES) as trace:
                async with (
                    open_local_proxy(
                        self._proxied, cafile=self._environment.get("GIT_SSL_CAINFO")
                    ) as local_proxy,
                    open_gateway(self._credentialed) as gateway,
                    open_agent(self._ssh_credential, self._environment["GIT_SSH_COMMAND"]) as agent,
                    child(
                        self._command(arguments, then),
                        self._directory,
                        {
                            **self._environment,
                            **local_proxy.environment,
                            **gateway.environment,
                            **agent.environment,
                            "GIT_TRACE2_EVENT": f"/dev/fd/{trace.fd}",
                        },
                        input_bytes,
                        pass_fds=[trace.fd],
                    ) as git,
                    asyncio.TaskGroup() as tasks,
                ):
                    agent.session = git.process.pid
                    watching = tasks.create_task(self._watch(git), name="git watch") if writes else None
                    stdout = tasks.create_task(read(git.stdout), name="git stdout")
                    stderr = tasks.create_task(_read(git.stderr, STDERR_BYTES), name="git stderr")
                    await asyncio.wait([stdout, stderr])
                    returncode = await git.wait()
                    if watching is not None:
                        outgrown = watching.done()
                        watching.cancel()
                events = gateway.plain(trace.content().decode("utf-8", "replace")).encode()
        except OSError as error:
            raise CheckoutFailed(Reason.MACHINE_FAILED, f"git could not be started: {error}") from None
        if outgrown or (writes and await self._has_outgrown()):
            raise CheckoutFailed(
                Reason.COMMIT_UNUSABLE,
                f"the commit takes more than {self._max_bytes // 1024**2} MiB on disk, which is the limit here",
            )
        errors = GitErrors(
            stderr=gateway.plain(stderr.result().decode("utf-8", "replace")),
            formats=read_formats(events),
            is_host_away=is_host_away(read_events(events)),
            trouble=local_proxy.trouble or gateway.trouble or self._note,
            is_credential_replaced=gateway.is_replaced,
        )
        return GitResult(returncode=returncode, stdout=stdout.result(), errors=errors)

    async def _watch(self, git: Child) -> None:
        """Kill git as soon as its directory exceeds the limit."""
        await asyncio.sleep(WATCH_SECONDS)
        while not await self._has_outgrown():  # noqa: ASYNC110  a disk sends no notification
            await asyncio.sleep(WATCH_SECONDS)
        git.kill()

    async def _has_outgrown(self) -> bool:
        if has_few_entries(self._measured):
            return directory_bytes(self._measured) > self._max_bytes
        return await asyncio.to_thread(directory_bytes, self._measured) > self._max_bytes


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Read all of a stream, and return its first `limit` bytes."""
    content = bytearray()
    while piece := await stream.read(64 * 1024):
        content += piece[: limit - len(content)]
    return bytes(content)


_ADVICE: Final = {"Please make sure you have the correct access rights", "and the repository exists."}
"""Git's last lines after every failure of ssh, whose own words stand before them."""


def stderr_tail(stderr: str) -> str:
    """Return the last lines of git's standard error as one line."""
    lines = [printable(line).strip() for line in stderr[-8192:].splitlines()]
    return "; ".join([line for line in lines if line and line not in _ADVICE][-3:])[-500:]


def printable(text: str) -> str:
    """Replace unprintable characters, such as controls, escapes and direction marks, with spaces."""
    return "".join(char if char.isprintable() else " " for char in text)
