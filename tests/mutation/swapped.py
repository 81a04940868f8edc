"""A pytest plugin that imports one module from another text.

For changes that act while the module is imported. It runs in a fresh process, whose environment names module and text
(`SOLSTICE_MUTATED_MODULE`, `_SOURCE`).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from hypothesis import Phase, settings


class _Swapped(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != os.environ.get("SOLSTICE_MUTATED_MODULE"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = _Loader(fullname, spec.origin)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return compile(Path(os.environ["SOLSTICE_MUTATED_SOURCE"]).read_text(), self.path, "exec")


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


if "SOLSTICE_MUTATED_MODULE" in os.environ:
    sys.meta_path.insert(0, _Swapped())
