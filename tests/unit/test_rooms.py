"""Packages stay small, and no module exists for a single importer."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grimp
import pytest

from tests.architecture_tables import PACKAGES, ROOT

ENTRIES: Final = 16
"""Modules and folders of one package; who opens it sees them at a glance."""
ROOMS: Final[Mapping[str, int]] = {"forge-integration": 18, "orchestrator": 21}
"""The tops of services have more: each of their entries is a room of its own in the contract of layers."""
LINES: Final = 400
"""Of one module at most; few pass 350."""
SMALL: Final = 80
"""Lines of a module that may join its only importer."""
EXCEPTIONS: Final[Mapping[str, str]] = {
    "solstice_forge.api.routes": "the addresses of the API, beside what answers them",
    "solstice_orchestrator.store.worker_registry": "a part of the store's protocol",
}
"""Modules that would join their only importer, except for this."""
PER_KIND: Final = frozenset({"sqlite", "postgresql", "forges", "remote", "commands"})
"""Folders with one module per database, forge or command, which one table imports."""


def packages() -> Iterator[tuple[str, Path]]:
    for name, root in PACKAGES.items():
        yield name, root
        yield from (
            (f"{name}/{folder.relative_to(root).as_posix()}", folder)
            for folder in sorted(root.rglob("*"))
            if (folder / "__init__.py").is_file()
        )


@pytest.mark.parametrize(("name", "folder"), tuple(packages()))
def test_a_package_is_seen_at_a_glance(name: str, folder: Path) -> None:
    entries = [
        each.name
        for each in folder.iterdir()
        if (each.suffix == ".py" and each.name != "__init__.py") or (each / "__init__.py").is_file()
    ]
    assert len(entries) <= ROOMS.get(name, ENTRIES), entries


@pytest.mark.parametrize("name", tuple(PACKAGES))
def test_no_module_is_too_long(name: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGES[name].rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > LINES} == {}


def test_a_small_module_that_one_other_uses_is_worth_tests_of_its_own_or_joins_it() -> None:
    names = {root.name: root for root in PACKAGES.values()}
    # Without its cache, which graphs with other options share: after one of those it may be stale.
    graph = grimp.build_graph(*names, cache_dir=None)
    test_code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    lonely = set()
    for module in graph.modules:
        package, *rest = module.split(".")
        path = names[package].joinpath(*rest).with_suffix(".py")
        if not path.is_file() or not PER_KIND.isdisjoint(rest):
            continue
        is_small = len(path.read_text().splitlines()) < SMALL
        if not is_small or len(graph.find_modules_that_directly_import(module)) != 1:
            continue
        folder, _, name = module.rpartition(".")
        if not re.search(
            rf"(?:from|import) {re.escape(module)}\b|from {re.escape(folder)} import [^\n]*\b{name}\b",
            test_code,
        ):
            lonely.add(module)
    assert lonely == set(EXCEPTIONS)


@pytest.mark.parametrize("service", ["common", "forge-integration", "orchestrator", "cli"])
def test_unit_tests_stand_in_the_rooms_of_what_they_test(service: str) -> None:
    root, tests = PACKAGES[service], ROOT / "tests/unit" / service.partition("-")[0]
    modules = {
        path.relative_to(root).with_suffix("") if path.is_file() else path.relative_to(root)
        for path in root.rglob("*")
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    names = {module.name for module in modules}
    strays = []
    for path in tests.rglob("test_*.py"):
        room, name = path.relative_to(tests).parent, path.stem.removeprefix("test_")
        is_a_room = (root / room / "__init__.py").is_file()
        # The test of a whole room has the room's name.
        if not is_a_room or (name in names and name != room.name and room / name not in modules):
            strays.append(path)
    assert strays == []


def test_each_verb_of_the_store_has_a_file_in_both_databases() -> None:
    store = PACKAGES["orchestrator"] / "store"
    verbs = {
        room: {path.stem for path in (store / room).glob("*.py")}
        for room in ("decisions", "sqlite", "postgresql")
    }
    # PostgreSQL notifies by itself.
    assert verbs["sqlite"] - {"notifier"} == verbs["postgresql"]
    assert verbs["decisions"] & verbs["sqlite"] >= {
        "admit",
        "cancel",
        "claim",
        "finish",
        "lease",
        "plan",
        "rescue",
        "schedule",
        "steer",
        "supersede",
    }
