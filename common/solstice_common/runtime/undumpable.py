"""Prevents this user's other processes from reading a process's memory and environment."""

import contextlib
import ctypes
import sys
from typing import Final

PR_SET_DUMPABLE: Final = 4


def make_undumpable() -> None:
    """Prevent this user's other processes from reading this one's memory and environment (Linux).

    The kernel keeps the environment of the start in memory, also after changes of `os.environ`: so the files of an
    undumpable process in /proc belong to root (prctl(2)), and it leaves no core file.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
