"""The glossary names words of the code, and public classes have unique names.

Names and first lines of docstrings follow the house style.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from solstice_common.telemetry import log_events as common_events
from solstice_forge import log_events as forge_events
from solstice_orchestrator import log_events as orchestrator_events
from tests.architecture_tables import PACKAGES
from tests.docs_pages import ROOT

ROW: Final = re.compile(r"^\| ([a-z][a-z ]+) \| .+ \| (.+) \|$", re.MULTILINE)
_HEADING, *ROWS = ROW.findall((ROOT / "docs/glossary.md").read_text("utf-8"))
METAPHORS: Final = frozenset(
    {
        "bell",
        "bells",
        "burial",
        "bury",
        "desk",
        "doorbell",
        "drawer",
        "epitaph",
        "heir",
        "house",
        "kin",
        "letter",
        "letters",
        "moody",
    }
    | {"lineage", "lineages", "parcel", "parcels", "play", "ring", "rings", "roster", "scribe", "standing"}
    | {
        "succession",
        "teller",
        "telling",
        "tellings",
        "tiding",
        "tidings",
        "timetable",
        "told",
        "untold",
        "wish",
        "wishes",
        "yard",
    }
)
"""Words that once stood for terms of the field. A dead letter is one of them."""
VAGUE: Final = frozenset(
    {
        "asked",
        "broke",
        "heard",
        "kept",
        "look",
        "looked",
        "looking",
        "looks",
        "mine",
        "nobody",
        "ours",
        "said",
        "says",
        "theirs",
        "troubled",
        "wanted",
    }
)
"""Words that no name has where a term says what the value is."""
VAGUE_IN_TESTS: Final = frozenset({"held", "taken"})
"""More of them. In services a broker's queue has messages that a consumer holds, and a name can be taken."""
JUDGED: Final[Mapping[str, Mapping[str, str]]] = {
    "asked": {
        "forges/events.py": "a field of the events that the inbox stores as JSON",
        "forges/comments_and_releases.py": "the same",
    },
    "kept": {"broker/dead_letters/replaying.py": "a field of what `solstice dlq replay --json` prints"},
    "wanted": {"statuses/protocol.py": "the label of a metric"},
    "wanted_slots": {"queue_times/demand.py": "a field of `/api/v1/scale`"},
}
"""Vague names that remain because others read them, each with its modules and the reason."""
JUDGED_IN_TESTS: Final[Mapping[str, str]] = {
    "_subject_taken": "a fault of the topology: another stream has the subject",
    "nobody_uid": "the user nobody",
    "held_back": "a field of the demand for slots",
    "ours": "our code, beside the yardstick of a bench",
}
DEAD_LETTER: Final = re.compile(r"dead_?letters?", re.IGNORECASE)
VAGUE_EVENTS: Final = METAPHORS | VAGUE | {"away", "dead", "disturbed", "found", "shut", "unfit"}
"""Words that do not say what happened."""
LOG_EVENTS: Final = (common_events.LogEvent, forge_events.LogEvent, orchestrator_events.LogEvent)
FIRST_LINE_WORDS: Final = 15
UNUSUAL: Final = re.compile(
    r"\b(all the same|anew|anybody|but for|everybody|for ever|for want of|in vain|lest|likewise|mend(?:s|ed|ing)?|"
    r"nobody|shall|somebody|thereby|whatever|whichever|whoever)\b",
    re.IGNORECASE,
)
"""Words that stand for no named subject, or that a reader who learned English late has to look up."""
UNPRIVILEGED_USER: Final = re.compile(r"user nobody|`nobody`")


def code_of(path: str) -> str:
    """The source of the modules that end in `path`: a file, or a package's files."""
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


@cache
def public_classes(package: Path) -> list[tuple[str, str]]:
    """The public classes of a package with the modules that define them."""
    return [
        (node.name, file.relative_to(package).as_posix())
        for file in sorted(package.rglob("*.py"))
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


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


def test_no_service_shares_a_class_name_with_common() -> None:
    """Except for log events, and a schema of the API, whose name is public."""
    common = {name for name, _ in public_classes(PACKAGES["common"])}
    assert {
        (service, name)
        for service, package in PACKAGES.items()
        if service != "common"
        for name, _ in public_classes(package)
        if name in common
    } == {
        ("forge-integration", "LogEvent"),
        ("orchestrator", "LogEvent"),
        ("forge-integration", "Delivery"),
    }


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())
def test_no_two_modules_of_a_package_share_a_name(package: Path) -> None:
    """Except for protocols, and for decisions with their files in both databases."""
    twins = {"decisions", "postgresql", "sqlite"}
    places = defaultdict(set)
    for file in package.rglob("[a-z]*.py"):
        places[file.name].add(file.relative_to(package))
    places.pop("protocol.py", None)
    assert {
        name: sorted(map(str, files))
        for name, files in places.items()
        if len(files) > 1 and any(twins.isdisjoint(file.parts) for file in files)
    } == {}


def names_given(node: ast.AST) -> Iterator[str]:
    """The name that a node of the code gives to something."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr


@dataclass(frozen=True, slots=True)
class Wording:
    """What a module says, without its code.

    A test process cannot hold that of all modules.
    """

    names: frozenset[str]
    """All names that it gives to something."""
    first_lines: tuple[str, ...]
    """Those of its docstrings."""
    strays: tuple[str, ...]
    """Strings that describe nothing."""


@cache
def wording(file: Path) -> Wording:
    """What a module says, taken apart once for all tests."""
    tree = ast.parse(file.read_text("utf-8"))
    names: set[str] = set()
    first_lines: list[str] = []
    for node in ast.walk(tree):
        names.update(names_given(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first_lines += (ast.get_docstring(node) or "").splitlines()[:1]
    return Wording(names=frozenset(names), first_lines=tuple(first_lines), strays=tuple(strays(tree)))


def names_in(file: Path) -> frozenset[str]:
    return wording(file).names


def words_of(name: str) -> set[str]:
    """The words of a name, in lower case; a dead letter is one word."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", DEAD_LETTER.sub("", name))}


def forbidden_names(folder: Path, forbidden: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """The modules of a folder with the names they give that have a forbidden word."""
    for file in sorted(folder.rglob("*.py")):
        for name in sorted(names_in(file)):
            # The name of a test is a sentence.
            if not name.startswith("test_") and not forbidden.isdisjoint(words_of(name)):
                yield file.relative_to(folder).as_posix(), name


def test_names_are_no_metaphors() -> None:
    assert {
        (name.lower(), module)
        for package in PACKAGES.values()
        for module, name in forbidden_names(package, METAPHORS | VAGUE)
    } == {(name, module) for name, modules in JUDGED.items() for module in modules}


def test_names_of_tests_are_no_metaphors() -> None:
    found = forbidden_names(ROOT / "tests", METAPHORS | VAGUE | VAGUE_IN_TESTS)
    assert {(module, name) for module, name in found if name.lower() not in JUDGED_IN_TESTS} == set()


def test_each_judged_name_of_tests_is_still_given() -> None:
    given = {name.lower() for file in (ROOT / "tests").rglob("*.py") for name in names_in(file)}
    assert JUDGED_IN_TESTS.keys() - given == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dead_letters", set()),
        ("print_DeadLetterQueue", {"print", "queue"}),
        ("old_letters", {"old", "letters"}),
        ("_schedule_bells", {"schedule", "bells"}),
    ],
)
def test_a_dead_letter_is_no_letter(name: str, words: set[str]) -> None:
    assert words_of(name) == words


def test_no_log_event_has_a_vague_name() -> None:
    events = [event for events in LOG_EVENTS for event in events]
    assert [event.value for event in events if VAGUE_EVENTS & words_of(event.value)] == []


def prose_of(source: str) -> Iterator[str]:
    """The comments of a module, and its docstrings, those of attributes included."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


@pytest.mark.parametrize("folder", [*PACKAGES.values(), ROOT / "tests"], ids=[*PACKAGES, "tests"])
def test_comments_and_docstrings_use_common_words(folder: Path) -> None:
    assert [
        f"{file.relative_to(folder)}: {found[0]}"
        for file in folder.rglob("*.py")
        # Nearly all modules have none of the words, and need not be taken apart.
        if UNUSUAL.search(source := file.read_text("utf-8"))
        for prose in prose_of(source)
        for found in UNUSUAL.finditer(UNPRIVILEGED_USER.sub("", prose))
    ] == []


@pytest.mark.parametrize("folder", ["common", "compose", "docs", "schemas", "services"])
def test_pages_scripts_and_documents_use_common_words(folder: str) -> None:
    assert [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in {".css", ".html", ".js", ".md", ".sh", ".yaml"}
        for found in UNUSUAL.finditer(UNPRIVILEGED_USER.sub("", file.read_text("utf-8")))
    ] == []


def test_no_test_has_a_name_without_a_subject() -> None:
    assert [
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in sorted(names_in(file))
        if name.startswith("test_") and UNUSUAL.search(name.replace("_", " "))
    ] == []


def strays(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that describe nothing, such as a removed constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, string in pairwise(node.body):
                if (
                    isinstance(string, ast.Expr)
                    and isinstance(string.value, ast.Constant)
                    and not isinstance(before, ast.Assign | ast.AnnAssign)
                ):
                    yield str(string.value.value)


@pytest.mark.parametrize("folder", [*PACKAGES.values(), ROOT / "tests"], ids=[*PACKAGES, "tests"])
def test_each_docstring_of_a_value_follows_the_value(folder: Path) -> None:
    assert [
        f"{file.relative_to(folder)}: {stray}"
        for file in folder.rglob("*.py")
        for stray in wording(file).strays
    ] == []


def test_a_docstring_without_a_value_is_found() -> None:
    code = 'import os\n"""What is gone."""\nA = 1\n"""What is here."""'
    assert list(strays(ast.parse(code))) == ["What is gone."]


@pytest.mark.parametrize("folder", [*PACKAGES.values(), ROOT / "tests"], ids=[*PACKAGES, "tests"])
def test_the_first_line_of_a_docstring_is_short(folder: Path) -> None:
    long = [
        f"{file.relative_to(folder)}: {first}"
        for file in folder.rglob("*.py")
        for first in wording(file).first_lines
        if len(re.findall(r"\S*\w\S*", first.removesuffix(" Pure."))) > FIRST_LINE_WORDS
    ]
    assert long == []
