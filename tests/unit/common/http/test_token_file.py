"""The token file is written whole, private to its owner, and reloaded on change."""

import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.errors import ConfigurationError
from solstice_common.http.token_file import TokenFile, change, read
from solstice_common.http.tokens import Token, TokenScope, mint

NOW = 1_800_000_000.0


def token(name: str, *, lifetime: float | None = None) -> Token:
    seed = name.encode().ljust(32, b"\0")
    return mint(
        name, [TokenScope.READ, TokenScope.OPERATE], now=NOW, lifetime_seconds=lifetime, random_bytes=seed
    )[0]


def write(path: Path, *tokens: Token) -> None:
    change(path, lambda _: tokens)


def names(tokens: Sequence[Token]) -> list[str]:
    return [one.name for one in tokens]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


def test_what_is_written_is_read(path: Path) -> None:
    tokens = (token("one"), token("two", lifetime=3600.0))
    write(path, *tokens)
    assert read(path) == tokens


def test_only_the_owner_may_read_it(path: Path) -> None:
    previous = os.umask(0)
    try:
        write(path, token("one"))
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_who_else_may_read_it_is_for_the_operator_to_say(path: Path) -> None:
    write(path, token("one"))
    path.chmod(0o640)
    write(path, token("one"), token("two"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(read(path)) == ["one", "two"]


def test_no_text_of_a_token_is_in_it(path: Path) -> None:
    stored, text = mint("one", [TokenScope.READ], now=NOW, lifetime_seconds=None, random_bytes=b"r" * 32)
    write(path, stored)
    assert text not in path.read_text()
    assert text.removeprefix("solstice_") not in path.read_text()


def test_a_file_that_is_not_there_holds_none(path: Path) -> None:
    assert read(path) == ()
    assert TokenFile(path).current() == ()


def test_each_change_is_seen(path: Path) -> None:
    file = TokenFile(path)
    for tokens in ([], [token("one")], [token("one"), token("two")], [token("two")], []):
        write(path, *tokens)
        assert file.current() == tuple(tokens)
    path.unlink()
    assert file.current() == ()


def test_a_file_that_did_not_change_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, token("one"))
    file = TokenFile(path)
    monkeypatch.setattr("solstice_common.http.token_file.read", None)
    assert names(file.current()) == ["one"]


BROKEN = {
    "not JSON": b"{",
    "empty": b"",
    "another document": b'{"secrets": []}',
    "unknown scope": json.dumps(
        {
            "tokens": [
                {
                    "name": "x",
                    "scopes": ["everything"],
                    "created_at": "2026-01-31T12:00:00Z",
                    "expires_at": None,
                    "sha256": "0" * 64,
                }
            ]
        }
    ).encode(),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_keeps_the_last_good_tokens_and_is_reported_once(path: Path, body: bytes) -> None:
    write(path, token("one"))
    file = TokenFile(path)
    path.write_bytes(body)
    with capture_logs() as logs:
        assert [names(file.current()) for _ in range(3)] == [["one"]] * 3
    (reported,) = logs
    assert (reported["event"], reported["log_level"], reported["tokens"]) == (
        "tokens.unreadable",
        "error",
        ["one"],
    )
    assert str(path) in reported["detail"]
    path.unlink()
    write(path, token("two"))
    assert names(file.current()) == ["two"]


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_nothing_starts_with_a_broken_file(path: Path, body: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(body)
    with pytest.raises(ConfigurationError, match="solstice token create"):
        TokenFile(path)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_believed(path: Path, mode: int) -> None:
    write(path, token("one"))
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read(path)


def test_a_broken_file_is_not_written_over(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"{")
    with pytest.raises(ConfigurationError):
        write(path, token("one"))
    assert path.read_bytes() == b"{"


def test_a_place_that_cannot_be_written_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="SOLSTICE_TOKENS"):
        write(tmp_path / "file" / "tokens.json", token("one"))


def test_those_who_change_it_together_lose_nothing(path: Path) -> None:
    def add(name: str) -> None:
        change(path, lambda tokens: [*tokens, token(name)])

    threads = [threading.Thread(target=add, args=(f"t{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(read(path))) == sorted(f"t{number}" for number in range(16))
