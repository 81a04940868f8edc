"""The inside of a library is used in one module, its fence, and nowhere else."""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from solstice_common.runtime.public_interfaces import LIBRARIES
from tests.architecture_tables import PACKAGES

FENCES: Final[Mapping[str, str]] = {
    "asyncpg": "solstice_common.storage.postgresql_transaction",
    "nats": "solstice_common.broker.jetstream.nats_client",
    "uvicorn": "solstice_common.http.server.protocol",
}
INSIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "aiormq": ("aiormq.base", "aiormq.channel", "aiormq.tools"),
    "asyncpg": ("asyncpg.connection", "asyncpg.connect_utils", "asyncpg.protocol"),
    "nats": ("nats.aio.transport", "nats.protocol"),
    "prometheus_client": ("prometheus_client.metrics", "prometheus_client.values"),
    "redis": ("redis.asyncio.client", "redis.asyncio.connection", "redis.client", "redis.connection"),
    "uvicorn": ("uvicorn.lifespan", "uvicorn.protocols", "uvicorn.server"),
}
"""Modules that the libraries document nowhere."""
GENERATED: Final = frozenset({"_abc_impl"})
"""Private names that Python itself gives to classes."""


def modules() -> Iterator[tuple[str, Path]]:
    for root in PACKAGES.values():
        for path in sorted(root.rglob("*.py")):
            yield (
                ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"),
                path,
            )


MODULES: Final = dict(modules())


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_own(name: str) -> bool:
    return name.partition(".")[0].startswith("solstice_")


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_inside_is_imported_by_its_fence_alone(package: str) -> None:
    for name, path in MODULES.items():
        if not path.is_relative_to(PACKAGES[package]):
            continue
        library_imports = [each for each in imported(ast.parse(path.read_text())) if not is_own(each)]
        assert [each for each in library_imports if is_private(each)] == [], name
        inside = {
            library
            for library, parts in INSIDE.items()
            for each in library_imports
            if f"{each}.".startswith(tuple(f"{part}." for part in parts))
        }
        assert inside <= {library for library, fence in FENCES.items() if fence == name}, name


def test_only_a_fence_reaches_into_the_objects_of_a_library() -> None:
    """Ruff's SLF001 finds private attributes of other objects; exceptions are written beside them."""
    reaching = {name for name, path in MODULES.items() if "SLF001" in path.read_text()}
    # The two classes of bodies are one thing.
    assert reaching - {"solstice_common.http.server.bodies"} == {FENCES["asyncpg"], FENCES["nats"]}


def test_only_a_fence_overrides_what_a_library_keeps_private() -> None:
    overriding = set()
    for name, path in MODULES.items():
        if has_classes_of_libraries(ast.parse(path.read_text())):
            classes = inspect.getmembers(importlib.import_module(name), inspect.isclass)
            overriding |= {name for _, each in classes if each.__module__ == name and overridden(each)}
    assert overriding == {FENCES["nats"], FENCES["uvicorn"]}


def has_classes_of_libraries(tree: ast.Module) -> bool:
    """Whether a class of the module derives from a library's, perhaps through a fence."""
    bases = {
        base.value.id
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name)
        else ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    return any(
        each.rpartition(".")[2] in bases
        for each in imported(tree)
        if is_library(each) or each.startswith(tuple(FENCES.values()))
    )


def overridden(cls: type) -> set[str]:
    """The private names of libraries' classes that this class has of its own."""
    own = {name for name in vars(cls) if name.startswith("_") and not name.endswith("_")} - GENERATED
    inherited = {name for base in cls.__mro__[1:] if is_library(base.__module__) for name in vars(base)}
    return own & inherited


def is_library(module: str) -> bool:
    # What pydantic, enum and typing write into the classes that they make is no method of ours.
    return module.partition(".")[0] in {*INSIDE, "aio_pika", "starlette", "typer"}


def test_each_fence_has_its_way_back() -> None:
    assert set(FENCES) == set(LIBRARIES)
    for library, fence in FENCES.items():
        text = MODULES[fence].read_text()
        assert f"SOLSTICE_PUBLIC_INTERFACES={library}" in text
