"""Run git on what strangers wrote: few protocols, no prompts, no hooks, no foreign configuration, bounded time and disk."""

import asyncio
import contextlib
import errno
import os
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
from solstice_orchestrator.processes.children import Child, child

T = TypeVar("T")

PASSED_ON: Final = frozenset(
    {
        "PATH",
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "no_proxy",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "GIT_SSL_CAINFO",
        "SSH_AUTH_SOCK",
    }
)
"""What git may know of the orchestrator's environment."""

STDERR_BYTES: Final = 64 * 1024
WATCH_SECONDS: Final = 0.25
"""How often git's directory is measured while git writes there; a shorter command is measured once, at its end."""

SSH: Final = "ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15"
LIMITED: Final = 'ulimit -d "$0" && exec "$@"'
"""Memory that is allocated, in KiB: of git, and of what git starts. A file that is only mapped does not count."""

CONFIG: Final = """\
[core]
\thooksPath = /dev/null
\tfsync = none
\tfsmonitor = false
\taskPass = true
\tbigFileThreshold = 16m
\tdeltaBaseCacheLimit = 16m
\tpackedGitLimit = 128m
\tpackedGitWindowSize = 16m
[pack]
\tthreads = 2
[credential]
\thelper =
[protocol "ext"]
\tallow = never
[transfer]
\tfsckObjects = true
\tbundleURI = false
[fetch "fsck"]
\tzeroPaddedFilemode = ignore
\tmissingSpaceBeforeDate = ignore
\tbadTimezone = ignore
[fetch]
\trecurseSubmodules = false
[submodule]
\trecurse = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[http]
\tfollowRedirects = false
\tlowSpeedLimit = 100
\tlowSpeedTime = 30
[init]
\tdefaultBranch = main
[advice]
\tdetachedHead = false
"""
"""Ours alone: neither the machine's configuration nor the service user's is read.

Old repositories hold the three kinds of harmless disorder that `fetch.fsck` lets pass. Nothing that git writes here
has to outlive the machine, so nothing waits for the disk (`fsync`).
"""

OWNERSHIP: Final = "[safe]\n\tdirectory = *\n"
"""Only where file:// is allowed: a repository of another user of this machine may then be read."""


class CheckoutFailed(SolsticeError):
    """The commit, or a file of it, could not be had.

    `reason` is CHECKOUT_FAILED when trying again later may help, MACHINE_FAILED when trying elsewhere may;
    COMMIT_NOT_FOUND, COMMIT_UNUSABLE or INVALID_WORKFLOW when neither will. `may_appear`: the repository is there and only the commit is not, which can be a matter of seconds.
    """

    def __init__(self, reason: Reason, detail: str, *, may_appear: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.may_appear = may_appear


@dataclass(frozen=True, slots=True, kw_only=True)
class GitPolicy:
    """What git is allowed, here."""

    protocols: tuple[str, ...] = ("https", "http", "ssh")
    timeout_seconds: float = 600.0
    """For everything that one checkout takes."""
    max_bytes: int = 4 * 1024**3
    """What a checkout may take on disk."""
    planning_timeout_seconds: float = 60.0
    planning_max_bytes: int = 256 * 1024**2
    """The same for the reading of a workflow file; without `--filter` at the server this is a whole commit."""
    max_memory_bytes: int = 1024**3
    """What each process of git may allocate in a checkout."""
    planning_max_memory_bytes: int = 384 * 1024**2
    allow_private: bool = True
    """Whether repositories may be on addresses that are not on the internet; the setting is off by default."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The orchestrator's own; PASSED_ON is all that git gets of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitResult(Generic[T]):
    """How a command ended, and what was made of its output."""

    returncode: int
    stdout: T
    stderr: str


class Git:
    """git on one repository; `home` holds its configuration and counts for nothing else.

    The repository is `directory` itself when it is bare, else its `.git`.
    """

    def __init__(
        self, policy: GitPolicy, directory: Path, home: Path, max_bytes: int, *, bare: bool = False
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.git_dir = directory if bare else directory / ".git"
        self._directory, self._max_bytes = directory, max_bytes
        self._max_memory = policy.planning_max_memory_bytes if bare else policy.max_memory_bytes
        self._options: tuple[str, ...] = ()
        config = home / "gitconfig"
        config.write_text(CONFIG + (OWNERSHIP if "file" in policy.protocols else ""), encoding="utf-8")
        self._environment = {
            "PATH": os.defpath,
            **{name: value for name, value in policy.environment.items() if name in PASSED_ON},
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
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_SSH_COMMAND": SSH,
            "GIT_TERMINAL_PROMPT": "0",
            **({} if bare else {"GIT_WORK_TREE": str(directory)}),
            "SSH_ASKPASS": "true",
        }

    def use(self, pin: AddressPin) -> None:
        """Connect to the addresses of `pin` alone, from now on."""
        self._options = pin.options
        self._environment.update(pin.environment)

    def _command(self, arguments: Sequence[str]) -> Sequence[str]:
        git = shutil.which("git", path=self._environment["PATH"])
        if git is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git")
        command = (git, *self._options, *arguments)
        if not sys.platform.startswith("linux"):
            return command
        return ("/bin/sh", "-c", LIMITED, str(self._max_memory // 1024), *command)

    async def run(
        self, *arguments: str, input_bytes: bytes = b"", max_output: int = 64 * 1024, writes: bool = False
    ) -> GitResult[bytes]:
        """Run one git command to its end, as `converse` does; its output is cut at `max_output` bytes."""
        read = partial(_read, limit=max_output)
        return await self.converse(*arguments, input_bytes=input_bytes, read=read, writes=writes)

    async def converse(
        self,
        *arguments: str,
        input_bytes: bytes,
        read: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]],
        writes: bool = False,
    ) -> GitResult[T]:
        """Run one git command to its end, with `input_bytes` as its input; `read` has to take all of its output.

        Raises CheckoutFailed when git cannot be started, and when it `writes` and its directory outgrows its limit.
        Whoever cancels this kills git and its children.
        """
        outgrown = False
        try:
            async with (
                child(self._command(arguments), self._directory, self._environment, input_bytes) as git,
                asyncio.TaskGroup() as tasks,
            ):
                watching = tasks.create_task(self._watch(git), name="git watch") if writes else None
                stdout = tasks.create_task(read(git.stdout), name="git stdout")
                stderr = tasks.create_task(_read(git.stderr, STDERR_BYTES), name="git stderr")
                await asyncio.wait([stdout, stderr])
                returncode = await git.wait()
                if watching is not None:
                    outgrown = watching.done()
                    watching.cancel()
        except OSError as error:
            raise CheckoutFailed(Reason.MACHINE_FAILED, f"git could not be started: {error}") from None
        if outgrown or (writes and await self._has_outgrown()):
            raise CheckoutFailed(
                Reason.COMMIT_UNUSABLE,
                f"the commit takes more than {self._max_bytes // 1024**2} MiB on disk, which is the limit here",
            )
        return GitResult(
            returncode=returncode, stdout=stdout.result(), stderr=stderr.result().decode("utf-8", "replace")
        )

    async def _watch(self, git: Child) -> None:
        """Kill git as soon as its directory has outgrown the limit."""
        await asyncio.sleep(WATCH_SECONDS)
        while not await self._has_outgrown():  # noqa: ASYNC110  a disk notifies nobody
            await asyncio.sleep(WATCH_SECONDS)
        git.kill()

    async def _has_outgrown(self) -> bool:
        return await asyncio.to_thread(directory_bytes, self._directory) > self._max_bytes


LEAST_FILE_BYTES: Final = 4096
"""What a file takes on disk at least, empty or not: a block or an inode, of which a disk has no more than of the others."""


def directory_bytes(directory: Path) -> int:
    """What the files below take on disk, as far as it can be seen while others write there."""
    total, todo = 0, [str(directory)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        total += max(LEAST_FILE_BYTES, entry.stat(follow_symlinks=False).st_size)
    return total


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """All of a stream, of which the first `limit` bytes are kept."""
    kept = bytearray()
    while piece := await stream.read(64 * 1024):
        kept += piece[: limit - len(kept)]
    return bytes(kept)


def stderr_tail(stderr: str) -> str:
    """The end of what git said, on one line."""
    lines = [printable(line).strip() for line in stderr[-8192:].splitlines()]
    return "; ".join([line for line in lines if line][-3:])[-500:]


def printable(text: str) -> str:
    """The text without what could change the look of a page or terminal: controls, escapes, marks of direction."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
