"""Tables of rooms, modules and import contracts for `docs/`."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.markdown import table

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final[Mapping[str, Path]] = {
    "common": ROOT / "common/solstice_common",
    "forge-integration": ROOT / "services/forge-integration/solstice_forge",
    "orchestrator": ROOT / "services/orchestrator/solstice_orchestrator",
    "cli": ROOT / "services/cli/solstice_cli",
}


def modules(package: Path) -> Iterator[tuple[str, str]]:
    """Each module of a package by its path in it, and its first sentence.

    A folder represents its `__init__.py`.

    A folder without a sentence is left out; a module without one has an empty sentence.
    """
    for path in sorted(package.rglob("*.py"), key=_order_of):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        sentence = " ".join(docstring.partition("\n\n")[0].split())
        if path.name != "__init__.py":
            yield path.relative_to(package).as_posix(), sentence
        elif sentence and path.parent != package:
            yield f"{path.parent.relative_to(package).as_posix()}/", sentence


def modules_table(package: Path) -> str:
    """One row per module."""
    return table(("module", ""), [(f"`{name}`", sentence) for name, sentence in modules(package)])


def rooms_table(package: Path) -> str:
    """One row per room of a package, in the order of its layers.

    The upper may import the lower.
    """
    sentences = {name.removesuffix(".py").removesuffix("/"): sentence for name, sentence in modules(package)}
    (contract,) = (each for each in _contracts() if each.get("containers") == [package.name])
    return table(
        ("room", "owns"),
        [
            (f"`{room}`", sentences[room])
            for layer in contract["layers"]
            for room in re.findall(r"\w+", layer)
        ],
    )


def contracts_table() -> str:
    """One row per contract of import-linter: the bound modules, and their limits."""
    return table(
        ("contract", "holds for", "rule"),
        [(each["name"], *RULES[each["type"]](each)) for each in _contracts()],
    )


def _contracts() -> Sequence[Mapping[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts: Sequence[Mapping[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def _layers(contract: Mapping[str, Any]) -> tuple[str, str]:
    whom = contract.get("containers") or ["the packages"]
    rows = [_layer(layer) for layer in contract["layers"]]
    also = " Every module has its place." if contract.get("exhaustive") else ""
    return _named(whom), f"What stands above may import what stands below:<br>{'<br>'.join(rows)}.{also}"


def _layer(layer: str) -> str:
    """The modules of one layer.

    Modules with a bar between them must not import each other; with a comma they may.
    """
    names = re.findall(r"[\w.]+", layer)
    return (", " if ":" in layer else " | ").join(f"`{name}`" for name in names)


def _forbidden(contract: Mapping[str, Any]) -> tuple[str, str]:
    how = "do not import" if contract.get("allow_indirect_imports") else "do not import, directly or not,"
    return _named(contract["source_modules"]), f"They {how} {_named(contract['forbidden_modules'])}."


def _acyclic(contract: Mapping[str, Any]) -> tuple[str, str]:
    return _named(contract["ancestors"]), "No circle of imports between neighbours, at any depth."


RULES: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]]] = {
    "layers": _layers,
    "forbidden": _forbidden,
    "acyclic_siblings": _acyclic,
}


def _named(names: Sequence[str]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names)


def _order_of(path: Path) -> tuple[str, bool, str]:
    """Sort folder by folder, with each folder's own sentence first."""
    return path.parent.as_posix(), path.name != "__init__.py", path.name
