"""Runs `guest_jobs`, or pytest, without the packages that jobs do not use.

Python imports hundreds of modules for a job in a container, most of them for what this job does not do: fetches, stores,
brokers, metrics. In a guest whose processors are simulated that takes longer than the job.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

UNUSED = (
    *("asyncpg", "cryptography", "httpx2", "joserfc", "prometheus_client", "pydantic_settings", "rich"),
    *("solstice_common.broker", "solstice_common.signing"),
    *("solstice_orchestrator.metrics", "solstice_orchestrator.store"),
)

USED = "solstice_orchestrator.store.artifact_records"
"""A module in one of them: the values that a job's artifacts are recorded as."""


class _AnyName(type):
    """A class with every attribute: a class again."""

    def __getattr__(cls, name: str) -> "_AnyName":
        return _made(name)


class _Nothing(metaclass=_AnyName):
    """May be made, inherited from and named in a type, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def _made(name: str) -> _AnyName:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyName(name, (_Nothing,), {})


class _Unused(MetaPathFinder, Loader):
    """Finds the packages, and all modules in them, with a class for each name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == USED:
            package, *below = fullname.split(".")
            folder = Path(importlib.import_module(package).__path__[0])
            return spec_from_file_location(fullname, folder.joinpath(*below).with_suffix(".py"))
        unused = any(f"{fullname}.".startswith(f"{package}.") for package in UNUSED)
        return ModuleSpec(fullname, self, is_package=True) if unused else None

    def create_module(self, spec: ModuleSpec) -> None:
        del spec

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, "__getattr__", _made)  # noqa: B010  it is no variable for a type checker


if __name__ == "__main__":
    sys.meta_path.insert(0, _Unused())
    if sys.argv[1] == "pytest":
        sys.exit(importlib.import_module("pytest").main(sys.argv[2:]))
    importlib.import_module("tests.integration.orchestrator.worker.guest_jobs").main(*sys.argv[1:])
