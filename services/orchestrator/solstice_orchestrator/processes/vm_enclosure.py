"""Enclose this process, and become a job's QEMU there.

Run as `python -I -S vm_enclosure.py WORDS COMMAND...` with the standard library alone, by `vm_host.py`. WORDS are JSON:

* `groups`: directories of control groups, whose limits are set. This process joins them;
* `namespace`: whether it gets a network namespace of its own, where no service of this machine listens. Without root
  that takes a namespace of users as well;
* `router`: the command of slirp4netns, which gives that namespace a way out; empty for none. It ends with COMMAND;
* `user` and `extra_groups`: who COMMAND is, where this process is root; null where it is not.

Where a part is not to be had, it ends with 1 and says why on standard error: QEMU never runs less enclosed than asked for.
"""

import ctypes
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
INTERFACE: Final = "tap0"
HIGH: Final = 200
"""Above the descriptors that QEMU inherits."""


def main(words: str, *command: str) -> None:
    parts = json.loads(words)
    try:
        enclose(parts)
        os.execvp(command[0], command)  # noqa: S606  no shell is wanted
    except OSError as error:
        sys.exit(f"QEMU could not be enclosed: {error}")


def enclose(parts: dict[str, Any]) -> None:
    """Do what the words ask for, in the order in which it is allowed."""
    for group in parts["groups"]:
        (Path(group) / "cgroup.procs").write_text("0")
    # Where memory is short in these groups, QEMU goes first.
    Path("/proc/self/oom_score_adj").write_text("1000")
    if parts["namespace"]:
        router = Router(parts["router"]) if parts["router"] else None
        _leave_network()
        if router:
            router.connect()
    if parts["user"] is not None:
        os.setgroups(parts["extra_groups"])
        os.setresgid(*[parts["user"]] * 3)
        os.setresuid(*[parts["user"]] * 3)


class Router:
    """Connects our namespace, as a process in the network of this machine."""

    def __init__(self, command: list[str]) -> None:
        begins, self._begin = os.pipe()
        self._ready, ready = os.pipe()
        lives, self._lives = os.pipe()
        namespace_of = os.getpid()
        if os.fork() == 0:
            os.close(self._begin)
            # Without our word there is no namespace: it must not connect that of this machine.
            if not os.read(begins, 1):
                os._exit(1)
            # None of the channels of QEMU: the end of QEMU is their end.
            numbers = [fcntl.fcntl(end, fcntl.F_DUPFD, HIGH) for end in (ready, lives)]
            os.closerange(3, HIGH)
            options = (f"--ready-fd={numbers[0]}", f"--exit-fd={numbers[1]}")
            try:
                os.execvp(command[0], [*command, *options, str(namespace_of), INTERFACE])  # noqa: S606  no shell is wanted
            except OSError as error:
                os.write(2, f"{command[0]} could not be started: {error}\n".encode())
                os._exit(1)
        for end in (begins, ready, lives):
            os.close(end)
        # QEMU inherits this end, and the router ends with it.
        os.set_inheritable(self._lives, True)

    def connect(self) -> None:
        """Let it begin, and wait until the namespace is connected."""
        os.write(self._begin, b"1")
        os.close(self._begin)
        if not os.read(self._ready, 1):
            raise OSError("its network could not be connected")
        os.close(self._ready)


def _leave_network() -> None:
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET | (CLONE_NEWUSER if user else 0)
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"no network namespace can be made: {os.strerror(number)}")
    if user:
        # The same names inside: what QEMU opens belongs to this user.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


if __name__ == "__main__":
    main(*sys.argv[1:])
