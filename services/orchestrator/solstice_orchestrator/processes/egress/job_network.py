"""Open a socket in the network of a job, for a process outside."""

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

BACKLOG: Final = 64
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000


def listen_in(pid: int, address: str, port: int) -> socket.socket:
    """Return a socket that listens in the network of a process.

    OSError when that fails. A socket stays in the network in which it was made. A process of its own makes this one: we never enter the network.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(OSError):
                _enter(pid)
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                    listener.bind((address, port))
                    listener.listen(BACKLOG)
                    socket.send_fds(there, [b"1"], [listener.fileno()])
                    code = 0
            os._exit(code)
        there.close()
        _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
        os.waitpid(child, 0)
    if not descriptors:
        raise OSError("no socket could be opened in the network of the container")
    return socket.socket(fileno=descriptors[0])


def _enter(pid: int) -> None:
    """Enter the network of a process, or raise OSError; it must not be our own."""
    with contextlib.ExitStack() as opened:
        network, users = (
            opened.enter_context(Path(f"/proc/{pid}/ns/{kind}").open("rb")) for kind in ("net", "user")
        )
        if os.path.samestat(os.fstat(network.fileno()), Path("/proc/self/ns/net").stat()):
            raise OSError("the process has our network")
        setns = ctypes.CDLL(None, use_errno=True).setns
        # Without root, the users of the container are where we have the right to its network.
        entered = setns(network.fileno(), CLONE_NEWNET) == 0 or (
            setns(users.fileno(), CLONE_NEWUSER) == 0 and setns(network.fileno(), CLONE_NEWNET) == 0
        )
        if not entered:
            raise OSError(ctypes.get_errno(), "the network of the container cannot be entered")


def share_limits_of(pid: int) -> None:
    """Join the groups that limit memory and processors of a process, where possible."""
    with contextlib.suppress(OSError):
        for group in limiting_groups(Path(f"/proc/{pid}/cgroup").read_text().splitlines()):
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text("0")


def limiting_groups(lines: Sequence[str]) -> Iterator[Path]:
    """Yield the directories of these groups: those of version 1 where there are any."""
    fields = [line.split(":", 2) for line in lines]
    first = [(names.split(","), path) for _, names, path in fields if names]
    if any("cpu" in names for names, _ in first):
        for names, path in first:
            for name in {"cpu", "memory"} & set(names):
                yield CONTROL_GROUPS / name / path.lstrip("/")
        return
    for _, _, path in fields:
        yield CONTROL_GROUPS / path.lstrip("/")


def is_of_machine(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is one of this machine's own."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004  of the internet protocol
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((str(address), 0))
        except OSError:
            return False
    return True
