"""Words that names share stand in the glossary, or are terms of the field."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.architecture_tables import PACKAGES
from tests.unit.test_glossary import LOG_EVENTS, ROWS, public_classes

SHARED: Final = 3
"""A word in so many names of modules and public classes is part of our vocabulary."""
PRODUCTS: Final = re.compile(r"PostgreSQL|RabbitMQ|JetStream|OpenAPI|GitHub|GitLab", re.IGNORECASE)
TABLE: Final = re.compile(r"CREATE (?:UNLOGGED )?TABLE(?: IF NOT EXISTS)? (\w+)")
RENAMED: Final = re.compile(r"(?:DROP TABLE|ALTER TABLE) (\w+)(?: RENAME TO (\w+))?;")

TERMS: Final[Mapping[str, str]] = {
    "AMQP and message brokers": "binding broker channel consumer envelope exchange message payload property "
    "publish publisher queue stream subscription topology",
    "databases": "alias archive backup copy cursor durability load lock migration query row schema state store table transaction view",
    "Git and forges": "branch checkout comment commit fetch forge git gitea head hook merge object owner project "
    "pull push ref release repository resend submodule suite tree webhook",
    "OpenTelemetry": "export span traced",
    "products": "kdl lf nat podman redis solstice sqlite",
    "HTTP and networks": "access address api body client complete connection header host http link login proxy route server "
    "subscription token transport url web wire",
    "programs": "directory tar app application byte call chunk clock command control database entry error event file filter "
    "frame git input limit line local log member memory mode name node note option operation orchestrator output page policy process "
    "protocol reader reading record result right role script secret setting signature ssh text timeout tool trace user value writer",
    "scheduling and CI": "backlog bucket cancel check comparison count demand depth dispatch "
    "execution health metric order plan planning rate reason repeat replay rerun "
    "retention rule schedule simulation stop supervisor weighted workflow workspace",
    "English": "place stored answer bound decision declared denied dropping embedded enqueue fact family finding found invalid keep kind "
    "left lost missed missing move named need new next not part planned pushed question refusal refused round running scale "
    "scope scripted settling signed signing simulated spec unavailable wait waiting whole",
}
"""Words that a reader knows from elsewhere, by where from."""
KNOWN: Final = frozenset(word for words in TERMS.values() for word in words.split())


def singular(word: str) -> str:
    """The singular of an English noun, as far as our names need it."""
    for plural, one in (
        ("sses", "ss"),
        ("caches", "cache"),
        ("ches", "ch"),
        ("aliases", "alias"),
        ("tatuses", "tatus"),
        ("ies", "y"),
    ):
        if word.endswith(plural):
            return word.removesuffix(plural) + one
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is", "as")) else word


def words_in(name: str) -> set[str]:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", PRODUCTS.sub("", name))
    return {singular(word.lower()) for word in words if len(word) > 2}


def tables(package: Path) -> set[str]:
    """The tables that a package's migrations create and leave."""
    texts = [file.read_text("utf-8") for file in package.rglob("*.sql")]
    found = {name for text in texts for name in TABLE.findall(text)}
    for old, new in (names for text in texts for names in RENAMED.findall(text)):
        found = (found - {old}) | ({new} if new else set())
    return found


@cache
def shared_names() -> frozenset[str]:
    """The names of modules and public classes."""
    names = set()
    for package in PACKAGES.values():
        for file in package.rglob("*.py"):
            names.add(file.parent.name if file.stem == "__init__" else file.stem)
        names |= {name for name, _ in public_classes(package)}
    return frozenset(names)


def unexplained(names: Collection[str], explained: Collection[str], times: int) -> Mapping[str, list[str]]:
    """The unexplained words that so many of the names share, with the names."""
    places = defaultdict(set)
    for name in names:
        for word in words_in(name):
            places[word].add(name)
    return {
        word: sorted(found)
        for word, found in sorted(places.items())
        if len(found) >= times and word not in explained
    }


def glossary() -> set[str]:
    return {singular(word) for row, _ in ROWS for word in row.split()}


def test_each_shared_word_of_modules_and_classes_is_explained() -> None:
    assert unexplained(shared_names(), glossary() | KNOWN, SHARED) == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_word_of_a_table_is_explained(package: str) -> None:
    assert unexplained(tables(PACKAGES[package]), glossary() | KNOWN, 1) == {}


def test_each_subject_of_a_log_event_is_explained() -> None:
    subjects = {event.value.split(".")[0] for events in LOG_EVENTS for event in events}
    assert unexplained(subjects, glossary() | KNOWN, 1) == {}


def test_each_term_of_the_field_is_used_and_stands_in_one_place() -> None:
    subjects = {event.value.split(".")[0] for events in LOG_EVENTS for event in events}
    stored = {name for package in PACKAGES.values() for name in tables(package)}
    used = {word for name in {*shared_names(), *subjects, *stored} for word in words_in(name)}
    assert KNOWN - used == set()
    assert KNOWN & glossary() == set()


@pytest.mark.parametrize("word", ["outbox", "reconcile", "lookup", "verdict"])
def test_a_word_of_ours_that_leaves_the_glossary_is_found(word: str) -> None:
    assert word in unexplained(shared_names(), (glossary() | KNOWN) - {word}, SHARED)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["DeadLetterParcel", "parcels", "ParcelStore"], {"parcel"}),
        (["Parcel", "parcels"], set()),
        (["JobStatus", "statuses", "status_reporter"], set()),
        (["aliases", "Alias", "alias_table"], {"alias"}),
    ],
)
def test_a_new_word_is_found_once_three_names_share_it(names: list[str], words: set[str]) -> None:
    explained = (glossary() | KNOWN) - {"alias"}
    assert set(unexplained(names, explained, SHARED)) == words
