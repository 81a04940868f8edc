"""A page shows no recognisable secret and no invisible character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.web.formats.masked_text import (
    READ_BYTES,
    SHOWN_CHARACTERS,
    SHOWN_OF_HEADER,
    masked,
    shown_body,
    shown_header,
    visible,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:hunter2@forge.example/x", "https://me:***@forge.example/x"),
        (f"https://{'t' * 40}@forge.example/x", "https://***@forge.example/x"),
        ('{"password": "hun\\"ter2", "a": 1}', '{"password": "***", "a": 1}'),
        ("{'api_key': 'hunter2'}", "{'api_key': '***'}"),
        ('"token": "hunter2', '"token": "***"'),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("git -c TOKEN=hunter2 fetch", "git -c TOKEN=*** fetch"),
        (f"ghp_{'a' * 36} and glpat-{'b' * 20}", "*** and ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- x", "*** x"),
        ("-----BEGIN PRIVATE KEY-----\nMII", "***"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    ["https://forge.example/a/b.git", '{"repo_full_name": "lantern/harbour"}', "commit_sha: too short"],
)
def test_all_else_is_left_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_a_header_with_a_secret_name_is_masked_whole() -> None:
    assert shown_header("x-api-key", ["hunter2"]).text == "***"
    assert shown_header("x-solstice-idempotency-key", "k").text == "k"
    assert shown_header("x-death", [{"count": 1}]).text == '[{"count": 1}]'
    assert shown_header("x", "y" * (SHOWN_OF_HEADER + 1)).left_out


def test_a_body_is_laid_out_and_a_large_one_cut() -> None:
    assert shown_body(b'{"a":1}').text == '{\n  "a": 1\n}'
    assert shown_body(b"\xff").text == "\\xff"
    assert not shown_body(b"x" * SHOWN_CHARACTERS).left_out
    for size in (SHOWN_CHARACTERS + 1, 10_000_000):
        shown = shown_body(b"x" * size)
        assert (len(shown.text), shown.left_out) == (SHOWN_CHARACTERS, True)


@pytest.mark.parametrize(("more_bytes", "text"), [(0, '{\n  "a": 1\n}'), (1, '{"a":1}')])
def test_a_body_is_laid_out_up_to_the_size_that_is_read(more_bytes: int, text: str) -> None:
    shown = shown_body(b'{"a":1}'.ljust(READ_BYTES + more_bytes))
    assert (shown.text.rstrip(), shown.left_out) == (text, more_bytes > 0)


def test_a_secret_at_the_cut_does_not_show() -> None:
    body = b"x" * (SHOWN_CHARACTERS - 20) + b' "password": "hunter2-hunter2-hunter2"'
    assert "hunter" not in shown_body(body).text


@given(st.binary(max_size=300))
def test_any_body_can_be_shown(body: bytes) -> None:
    shown_body(body).text.encode()


@given(st.text(st.characters(codec=None), max_size=50))
def test_nothing_invisible_is_left(text: str) -> None:
    visible(text).encode()
    assert not set(visible(text)) & set("\x00\x1b\x7f\u202e\u200f\u2066")


@pytest.mark.parametrize(
    "piece", ["'", '"', "token", "://", "a:", "-----BEGIN PRIVATE KEY-----", "token=", '"token":"']
)
@pytest.mark.timeout(20)
def test_hostile_text_takes_no_longer(piece: str) -> None:
    masked(piece * (64 * 1024 // len(piece)))
