"""Runs tests on a module that is imported from another text.

Each run is a fork of a process that has imported the libraries, which takes seconds, and none of our modules.
"""

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, Self

import pytest

from tests.mutation.choosing import PACKAGES, ROOT
from tests.mutation.forks import forked
from tests.mutation.swapped import Swapped

OURS: Final = frozenset({"__main__", "tests", *PACKAGES})


class PreparedProcess:
    """The process; it begins with the first run, and ends with the context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()
            self._process.communicate()

    def run(self, module: str, source: str, tests: Sequence[str], seconds: float) -> int | None:
        """Run the tests with this module.

        0: they pass; None: time ran out.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._write([name for name in sys.modules if name.partition(".")[0] not in OURS])
        self._write({"module": module, "source": source, "tests": tests, "seconds": seconds})
        assert self._process.stdout is not None
        status: int | None = json.loads(self._process.stdout.readline())
        return status

    def _write(self, line: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()


def serve(lines: Iterable[str]) -> None:
    """Import what the first line names, and run what each other line orders."""
    each = iter(lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in json.loads(next(each)):
            with suppress(Exception):
                import_module(name)
    for line in each:
        order = json.loads(line)
        sys.stdout.write(json.dumps(forked(partial(_passes, order), order["seconds"])) + "\n")
        sys.stdout.flush()


def _passes(order: Mapping[str, Any]) -> bool:
    sys.meta_path.insert(0, Swapped(order["module"], order["source"]))
    options = ["-x", "-q", "-p", "tests.mutation.swapped", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # pytest warns about each of its plugins that was imported before.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*options, *order["tests"]]) == pytest.ExitCode.OK


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    serve(sys.stdin)
