"""The glossary names words that the code uses, and public classes of a service have names of their own."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture_tables import PACKAGES
from tests.docs_pages import ROOT

ROW: Final = re.compile(r"^\| ([a-z][a-z ]+) \| .+ \| (.+) \|$", re.MULTILINE)
_HEADING, *ROWS = ROW.findall((ROOT / "docs/glossary.md").read_text("utf-8"))
METAPHORS: Final = frozenset(
    {"bell", "burial", "desk", "doorbell", "epitaph", "house", "kin", "lineage", "parcel", "roster", "scribe"}
    | {"teller", "tiding", "tidings", "yard"}
)
"""Words that once stood for terms of the field."""


def code_of(path: str) -> str:
    """What the modules say that end in `path`: a file, or the files of a package."""
    found = [
        file
        for package in PACKAGES.values()
        for file in package.rglob("*.py")
        if file.as_posix().endswith(f"/{path}") or file.parent.as_posix().endswith(f"/{path}".rstrip("/"))
    ]
    assert found, f"no module {path}"
    return "\n".join(file.read_text("utf-8") for file in found)


@pytest.mark.parametrize(("word", "places"), ROWS, ids=[word for word, _ in ROWS])
def test_a_word_stands_in_the_code_that_the_glossary_names(word: str, places: str) -> None:
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", places):
        text = f"{path}\n{code_of(path)}".lower()
        stem = word.rstrip("e")
        assert any(form in text for form in (stem, stem.replace(" ", "_"), stem.replace(" ", ""))), path


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = [word for word, _ in ROWS]
    assert words == sorted(set(words))
    assert {"attempt", "dead letter", "lease", "outbox"} <= set(words)


def public_classes(package: Path) -> Iterator[tuple[str, str]]:
    """The public classes of a package with the modules that define them."""
    for file in sorted(package.rglob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, file.relative_to(package).as_posix()


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())
def test_no_two_public_classes_of_a_package_share_a_name(package: Path) -> None:
    places = defaultdict(set)
    for name, file in public_classes(package):
        places[name].add(file)
    twins = {"postgresql", "sqlite"}
    assert {
        name: sorted(files)
        for name, files in places.items()
        # What one interface is in two databases may have one name in both.
        if len(files) > 1 and not all(twins & set(re.split(r"[/.]", file)) for file in files)
    } == {}


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())
def test_names_are_no_metaphors(package: Path) -> None:
    found = defaultdict(set)
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            name = getattr(node, "name", None) or getattr(node, "arg", None)
            if isinstance(name, str):
                words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
                if words & METAPHORS:
                    found[file.relative_to(package).as_posix()].add(name)
    assert dict(found) == {}
