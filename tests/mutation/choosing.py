"""Chooses modules to mutate and the tests that may notice.

It goes by name, and by what the tests import.
"""

import ast
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final[Mapping[str, Path]] = {
    "solstice_common": ROOT / "common",
    "solstice_forge": ROOT / "services/forge-integration",
    "solstice_orchestrator": ROOT / "services/orchestrator",
    "solstice_cli": ROOT / "services/cli",
}
TIERS: Final = ("tests/unit", "tests/contract")


def path_of(module: str) -> Path | None:
    """The path of a module or a package's `__init__`; None without one."""
    base = PACKAGES.get(module.partition(".")[0])
    if base is None:
        return None
    stem = base.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def module_of(path: Path) -> str | None:
    """The module of this file, given from the root of the checkout."""
    for base in PACKAGES.values():
        if path.suffix == ".py" and (ROOT / path).is_relative_to(base):
            parts = (ROOT / path).relative_to(base).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def named(words: Iterable[str]) -> Sequence[str]:
    """The modules that these words name.

    A word is a full name, the end of a name, a file, or a folder.
    """
    found = []
    for word in words:
        module = module_of(Path(word)) or word
        chosen = [each for each in everything() if _is_named(each, module)]
        if not chosen:
            message = f"No module is called {word!r}. Name one as Python does (solstice_orchestrator.domain.needs), by the end of its name (needs), or by its file."
            raise LookupError(message)
        found += chosen
    return list(dict.fromkeys(found))


def _is_named(module: str, word: str) -> bool:
    return module == word or module.endswith(f".{word}") or f".{module}.".find(f".{word}.") >= 0


@cache
def everything() -> Sequence[str]:
    """All modules, in order."""
    files = (
        path.relative_to(ROOT)
        for name, base in PACKAGES.items()
        for path in sorted((base / name).rglob("*.py"))
    )
    return [module for path in files if (module := module_of(path))]


def decisions() -> Sequence[str]:
    """The modules of the contract `decisions-do-no-io`, including those of its packages."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (each["source_modules"] for each in contracts if each["id"] == "decisions-do-no-io")
    return [each for each in everything() if any(f"{each}.".startswith(f"{name}.") for name in pure)]


def changed(base: str) -> Sequence[str]:
    """The modules that differ from this revision, committed or not."""
    reported = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [module for line in reported.stdout.splitlines() if (module := module_of(Path(line)))]


def files_of_tests(modules: Iterable[str]) -> Sequence[str]:
    """The test files for these modules.

    They have its name in its room, import one of the modules, or are contract suites that reach one.
    """
    chosen: list[str] = []
    reach: set[str] = set()
    for module in modules:
        reach |= _reach(module)
        chosen += unit_tests(module)
    chosen += [path for path in _tests("tests/contract") if _imports(path) & reach]
    return list(dict.fromkeys(chosen))


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def _reach(module: str) -> set[str]:
    """The module and all that import it, however far."""
    return {module} | (_graph().find_downstream_modules(module) if module in _graph().modules else set())


@cache
def unit_tests(module: str) -> Sequence[str]:
    """The unit test files that have its name in its room, or import it.

    Without any: those of its package that reach it.
    """
    service, *rooms, name = module.removeprefix("solstice_").split(".")
    own = Path("tests/unit", service, *rooms, f"test_{name}.py")
    near = [path for path in _tests("tests/unit") if path == str(own) or module in _imports(path)]
    return near or [path for path in _tests(f"tests/unit/{service}") if _imports(path) & _reach(module)]


def _tests(tier: str) -> Iterator[str]:
    return (str(path.relative_to(ROOT)) for path in sorted((ROOT / tier).rglob("test_*.py")))


@cache
def _imports(path: str) -> frozenset[str]:
    """The imports of a file, including those of shared test files.

    An import from a package counts too.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    shared = [ROOT / f"{each.replace('.', '/')}.py" for each in found if each.startswith("tests.")]
    for file in shared:
        if file.is_file():
            found |= _imports(str(file.relative_to(ROOT)))
    return frozenset(found)
