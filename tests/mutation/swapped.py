"""A pytest plugin that imports one module from another text.

For changes that act while the module is imported. It runs in a process that has imported none of our modules.
"""

import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from types import CodeType, ModuleType

from hypothesis import Phase, settings


class Swapped(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it another text."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(fullname, spec.origin, self._source)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


def steady_examples() -> None:
    """Make Hypothesis repeat the same examples for each mutant, without storing or shrinking."""
    settings.register_profile(
        "mutation",
        settings.get_profile(settings.get_current_profile_name()),
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("mutation")


def pytest_sessionstart() -> None:
    steady_examples()
