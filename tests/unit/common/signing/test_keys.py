"""Keys in files, and the scope of each."""

import json
from typing import Any

import pytest

from solstice_common.messages import Source
from solstice_common.signing.keys import (
    KeyScope,
    Right,
    new_key,
    parse_private,
    parse_public,
    public_document,
)
from tests.signing import EVERYWHERE, KeyPair

PAIR = KeyPair()
PUBLIC: dict[str, Any] = json.loads(public_document([PAIR.verify]))["keys"][0]


def test_a_public_key_is_written_and_read_with_its_scope() -> None:
    scope = KeyScope(
        sources=frozenset({Source.GITHUB}),
        repositories=("forge.example/a/*",),
        rights=frozenset({Right.CANCELS}),
    )
    (read,) = parse_public(public_document([KeyPair("narrow", scope).verify]))
    assert (read.name, read.scope) == ("narrow", scope)
    assert PUBLIC.keys().isdisjoint({"d", "k", "p"})


def test_a_key_that_does_not_say_when_it_was_made_is_written_again_as_it_was() -> None:
    key = {name: value for name, value in PUBLIC.items() if name != "created_at"}
    document = public_document(parse_public(json.dumps({"keys": [key]}).encode()))
    assert json.loads(document) == {"keys": [key]}
    assert key["use"] == "sig"


def test_a_new_private_key_has_no_empty_members() -> None:
    private = json.loads(PAIR.text)
    assert private.keys() == {"kty", "crv", "kid", "x", "d", "use", "created_at"}
    assert private["x"] not in repr(PAIR.verify)


def test_no_text_shows_a_private_key() -> None:
    secret = json.loads(PAIR.text)["d"]
    assert secret not in repr(PAIR.signing) + repr(PAIR.verify)
    broken = PAIR.text.replace('"kty"', '"kti"').encode()
    with pytest.raises(ValueError, match=r"keys\.0\.kty") as raised:
        parse_private(broken)
    assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repositores": ["a/*"]}, "repositores"),
        ({"sources": None}, "sources"),
        ({"sources": []}, "sources"),
        ({"sources": ["sourceforge"]}, "sources.0"),
        ({"repositories": []}, "repositories"),
        ({"repositories": [""]}, "empty pattern"),
        ({"rights": ["everything"]}, "rights.0"),
        ({"kid": "a b"}, "kid"),
        ({"kid": "a\n"}, "kid"),
        ({"x": "AAAA"}, "x"),
        ({"crv": "X25519"}, "crv"),
        ({"d": "A" * 43}, "d"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_public_key_is_refused_by_the_name_of_what_is_wrong(
    changes: dict[str, Any], words: str
) -> None:
    key = {name: value for name, value in {**PUBLIC, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=words):
        parse_public(json.dumps({"keys": [key]}).encode())


@pytest.mark.parametrize("missing", ["sources", "repositories", "rights"])
def test_a_scope_is_required(missing: str) -> None:
    key = {name: value for name, value in PUBLIC.items() if name != missing}
    with pytest.raises(ValueError, match=missing):
        parse_public(json.dumps({"keys": [key]}).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"[" * 100_000, b"\xff"])
def test_what_is_no_key_file_is_reported(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON Web Key|file: |keys"):
        parse_public(content)
    with pytest.raises(ValueError, match=r"JSON Web Key|keys"):
        parse_private(content)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys 'forge'"):
        parse_public(json.dumps({"keys": [PUBLIC, PUBLIC]}).encode())


def test_a_private_key_that_is_not_that_of_its_public_one_is_damaged() -> None:
    with pytest.raises(ValueError, match=r"damaged|Ed25519"):
        parse_private(json.dumps({**json.loads(PAIR.text), "x": KeyPair().verify.x}).encode())


def test_a_set_of_private_keys_keeps_its_order() -> None:
    first, second = KeyPair("first"), KeyPair("second")
    keys = parse_private(json.dumps({"keys": [json.loads(first.text), json.loads(second.text)]}).encode())
    assert [key.name for key in keys] == ["first", "second"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64, "a/b", "a\n"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        new_key(name, EVERYWHERE, now="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("source", "place", "full_name", "covered"),
    [
        (Source.FORGEJO, "forge.example/river/otter", "river/otter", True),
        (Source.FORGEJO, "forge.example/river/otter", None, True),
        (Source.FORGEJO, "forge.example/river/otter", "otter", True),
        (Source.GITHUB, "forge.example/river/otter", "river/otter", False),
        (Source.FORGEJO, "forge.example/river/otter/deep", "river/otter/deep", False),
        (Source.FORGEJO, "evil.example/river/otter", "river/otter", False),
        (Source.FORGEJO, "forge.example/lake/otter", "lake/otter", False),
        (Source.FORGEJO, "forge.example/river/otter", "lake/otter", False),
        (Source.FORGEJO, "forge.example/river/otter", "iver/otter", False),
    ],
)
def test_a_scope_covers_its_source_and_repositories_alone(
    source: Source, place: str, full_name: str | None, covered: bool
) -> None:
    scope = KeyScope(
        sources=frozenset({Source.FORGEJO}), repositories=("forge.example/river/*",), rights=frozenset()
    )
    assert scope.covers(source, place, full_name) == covered
    assert EVERYWHERE.covers(source, place, full_name)
