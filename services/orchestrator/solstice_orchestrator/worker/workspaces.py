"""Create and remove private directories for attempts, and sweep those of killed orchestrators."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.runtime.private_paths import make_private_directory, restore_private_directory
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import workspace_removal
from solstice_orchestrator.processes.children import run
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.processes.control_groups import ControlGroup, left_by, open_group
from solstice_orchestrator.processes.forked_supervisors import SupervisorStarter
from solstice_orchestrator.processes.small_trees import remove_small_tree
from solstice_orchestrator.processes.supervisor import process_ids, signal_all

LOG = structlog.get_logger(__name__)

KILL_SECONDS: Final = 20.0
PATH_BYTES: Final = 4096
SCRATCH: Final = "git"
TOP_OF_HIERARCHY: Final = 0x20000
"""FS_TOPDIR_FL of ioctl_iflags(2)."""
_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
"""On most kinds of processor; on the others, the kernel knows no such request."""
_FLAGS: Final = struct.Struct("=II")
_SUFFIX: Final = ".lock"
EndLeft = Callable[[Path], Awaitable[bool]]
"""Ends what a dead orchestrator left outside of its directory; False: the directory is to stay for another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The directories of one attempt, all below `root`."""

    root: Path
    source: Path
    """The checkout of the commit, in which the steps run."""
    home: Path
    temporary: Path
    scripts: Path
    group: ControlGroup | None = None
    """The control group of its processes, where there are control groups."""
    starter: SupervisorStarter | None = None
    """What forks its supervisor."""
    checkout: CheckoutCopy | None = None
    """What its supervisor writes into `source`; without it, that has all its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The directory of one orchestrator; several may share its parent."""

    directory: Path
    group: ControlGroup | None = None
    """The control group of all its attempts, where there are control groups."""
    starter: SupervisorStarter | None = None
    """What forks the supervisors of all attempts; without it, each is started by itself."""

    @property
    def scratch(self) -> Path:
        """The directory for temporary files of planning and checkouts."""
        return self.directory / SCRATCH

    @asynccontextmanager
    async def attempt(self, name: str) -> AsyncIterator[Workspace]:
        """Create directories for an attempt, and always remove them on leaving.

        Raises OSError when there is no room.
        """
        root = self.directory / f"{name}-{secrets.token_hex(4)}"
        workspace = Workspace(
            root=root,
            source=root / "source",
            home=root / "home",
            temporary=root / "tmp",
            scripts=root / "steps",
            group=self.group.below(root.name) if self.group else None,
            starter=self.starter,
        )
        # A job runs as our user, and may have removed or closed it.
        restore_private_directory(self.directory, above=1)
        try:
            for path in (
                workspace.root,
                workspace.source,
                workspace.home,
                workspace.temporary,
                workspace.scripts,
            ):
                path.mkdir(mode=0o700)
            yield workspace
        finally:
            await run_to_completion(_remove(workspace), f"remove {root.name}")


@asynccontextmanager
async def open_workspaces(root: Path, end_left: EndLeft | None = None) -> AsyncIterator[Workspaces]:
    """Open a directory below `root` for this process, after sweeping those of killed ones.

    `end_left` is called with each of them first.

    Raises ConfigurationError when `root` cannot be used.
    """
    try:
        await sweep(root, end_left)
        lock, directory = _claim(root)
    except OSError as error:
        raise ConfigurationError(f"WORKSPACES {root}: {error.strerror or error}") from None
    try:
        async with _group_of(directory, lock) as group, aclosing(SupervisorStarter()) as starter:
            yield Workspaces(directory=directory, group=group, starter=starter)
    finally:
        try:
            await remove_tree(directory)
            _lock_file(directory).unlink(missing_ok=True)
        finally:
            os.close(lock)


async def sweep(root: Path, end_left: EndLeft | None = None) -> int:
    """Remove directories of dead orchestrators, and kill their processes; return how many directories."""
    swept = 0
    for directory in _directories(root):
        lock = _take_over(directory)
        if lock is None:
            continue
        try:
            group = left_by(directory.name, os.fsdecode(os.pread(lock, PATH_BYTES, 0)))
            if group:
                await group.end()
            killed = await asyncio.to_thread(kill_marked, directory)
            if end_left is not None and not await end_left(directory):
                continue
            await remove_tree(directory)
            _lock_file(directory).unlink(missing_ok=True)
        finally:
            os.close(lock)
        LOG.info(LogEvent.WORKSPACE_SWEPT, directory=str(directory), killed=killed)
        swept += 1
    return swept


@asynccontextmanager
async def _group_of(directory: Path, lock: int) -> AsyncIterator[ControlGroup | None]:
    """Make a control group for the processes of jobs, if the system allows it.

    Its path is kept in the lock file, for the sweep after a kill of this orchestrator.
    """
    async with open_group(directory.name) as opened:
        group = _with_lock(opened, lock) if isinstance(opened, ControlGroup) else opened
        if isinstance(group, str):
            LOG.info(LogEvent.CONTROL_GROUPS_UNUSED, detail=group)
            yield None
        else:
            LOG.info(LogEvent.CONTROL_GROUPS_USED, directory=str(group.path))
            yield group


def _with_lock(group: ControlGroup, lock: int) -> ControlGroup | str:
    """Keep the group's path in the lock file; return why that fails, if it does."""
    try:
        os.pwrite(lock, os.fsencode(group.path), 0)
    except OSError as error:
        return f"its name cannot be kept: {error}"
    return group


def _lock_file(directory: Path) -> Path:
    return directory.with_name(directory.name + _SUFFIX)


def _directories(root: Path) -> Sequence[Path]:
    """Return every claimed directory below `root`; a job can leave anything under such names."""
    locks = (path for path in sorted(root.glob(f"*{_SUFFIX}")) if path.is_file() and not path.is_symlink())
    return [path.with_name(path.name.removesuffix(_SUFFIX)) for path in locks]


def _take_over(directory: Path) -> int | None:
    """Lock a dead owner's directory; None when it lives or another process was faster."""
    try:
        lock = os.open(_lock_file(directory), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        LOG.warning(LogEvent.WORKSPACE_NOT_REMOVED, directory=str(directory), detail=str(error))
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _claim(root: Path) -> tuple[int, Path]:
    """Make a directory below `root`, locked for the lifetime of this process."""
    make_private_directory(root)
    while True:
        directory = root / secrets.token_hex(6)
        lock = os.open(_lock_file(directory), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have swept it meanwhile: then the name is gone, and another is needed.
            if os.fstat(lock).st_nlink:
                for each in (directory, directory / SCRATCH):
                    each.mkdir(mode=0o700)
                    spread(each)
                return lock, directory
        os.close(lock)


def spread(directory: Path) -> None:
    """Let the file system put new directories below this one apart from each other.

    What one attempt writes has nothing to do with what others do. On ext4 they would all be next to each other, where
    those of before have just been removed, and without a journal ext4 looks at every inode that was removed in the last
    minutes before it uses another: creating the few files of a small job took most of its processor time. Other file
    systems refuse this flag (ioctl_iflags(2)), and nothing changes.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = bytearray(_FLAGS.size)
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            (present, _) = _FLAGS.unpack(flags)
            fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(present | TOP_OF_HIERARCHY, 0))
        finally:
            os.close(descriptor)


def kill_marked(directory: Path) -> int:
    """Kill every process whose environment names a path in `directory`; return how many.

    This finds processes that outlived their supervisor. It does not find one that also cleared its environment; control
    groups do, where there are any.
    """
    mark, killed, deadline = f"={directory}/".encode(), set[int](), time.monotonic() + KILL_SECONDS
    while marked := {pid for pid in process_ids() if mark in _environment(pid)}:
        killed |= marked
        signal_all(marked, signal.SIGKILL)
        if time.monotonic() > deadline:
            LOG.error(LogEvent.PROCESSES_NOT_ENDED, directory=str(directory), count=len(marked))
            break
        time.sleep(0.002)
    return len(killed)


def _environment(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


async def _remove(workspace: Workspace) -> None:
    """Remove an attempt's control group and its directories, if its supervisor has not done it.

    One thread does both if nothing runs in the group and the tree is small.
    """
    if not _is_there(workspace.root) and (workspace.group is None or workspace.group.remove_empty()):
        return
    with contextlib.suppress(RuntimeError):
        # RuntimeError: a job has used up all threads.
        if await asyncio.to_thread(_remove_unused, workspace):
            return
    if workspace.group and not await workspace.group.end():
        LOG.error(LogEvent.PROCESSES_NOT_ENDED, directory=str(workspace.group.path), count=None)
    await _remove_tree(workspace.root)


def _is_there(path: Path) -> bool:
    # One system call, as for the group: no thread is worth that.
    return os.path.lexists(path)


def _remove_unused(workspace: Workspace) -> bool:
    """Remove a group without processes, and a small tree; False: something is left."""
    return (workspace.group is None or workspace.group.remove()) and remove_small_tree(str(workspace.root))


async def remove_tree(path: Path) -> None:
    """Remove a directory tree, however deep, read-only directories included.

    A cancelled caller waits for the end of it.
    """
    await run_to_completion(_remove_tree(path), f"remove {path.name}")


async def _remove_tree(path: Path) -> None:
    try:
        detail = await _removed(path)
    except (OSError, RuntimeError) as error:
        # No process or thread could be started.
        detail = f"{type(error).__name__}: {error}"
    if detail:
        LOG.error(LogEvent.WORKSPACE_NOT_REMOVED, directory=str(path), detail=detail)


async def _removed(path: Path) -> str:
    """Remove the tree; return why something of it is left, or nothing."""
    if await asyncio.to_thread(remove_small_tree, str(path)):
        return ""
    code = await run(sys.executable, "-I", "-S", workspace_removal.__file__, str(path))
    return os.strerror(code) if code > 0 else f"its removal was ended by signal {-code}" if code else ""
