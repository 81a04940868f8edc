"""`solstice token`: made, shown once, listed, revoked."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from solstice_cli.main import app
from solstice_common.cli.completion.candidates import candidates
from solstice_common.errors import ConfigurationError
from solstice_common.http.token_file import read
from solstice_common.http.tokens import TokenScope, find


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def solstice(path: Path) -> Any:
    def invoke(*words: str) -> Any:
        result = CliRunner().invoke(
            app, ["token", *words], env={"SOLSTICE_TOKENS": str(path), "COLUMNS": "200"}
        )
        if isinstance(result.exception, ConfigurationError):
            raise result.exception
        return result

    return invoke


def test_the_token_alone_is_on_standard_output(solstice: Any, path: Path) -> None:
    made = solstice("create", "release", "--scope", "read", "--scope", "enqueue", "--expires", "90d")
    text = made.stdout.strip()
    stored = find(read(path), text)
    assert stored is not None
    assert (stored.name, stored.scopes) == ("release", frozenset({TokenScope.READ, TokenScope.ENQUEUE}))
    assert stored.expires_at == pytest.approx(stored.created_at + 90 * 86400)
    assert "not shown again" in made.stderr


def test_it_is_shown_once(solstice: Any) -> None:
    text = solstice("create", "release", "--scope", "read").stdout.strip()
    assert text not in solstice("list").output
    assert text not in solstice("list", "--json").output


def test_json_carries_the_token_and_what_it_may(solstice: Any, path: Path) -> None:
    made = json.loads(solstice("create", "release", "--scope", "operate", "--json").output)
    assert find(read(path), made["token"]) == read(path)[0]
    assert (made["name"], made["scopes"], made["expires_at"]) == ("release", ["operate"], None)
    (listed,) = json.loads(solstice("list", "--json").output)["tokens"]
    assert listed == {name: value for name, value in made.items() if name != "token"} | {"expired": False}


def test_in_a_pipe_the_list_is_tab_separated(solstice: Any) -> None:
    solstice("create", "release", "--scope", "read", "--scope", "enqueue")
    name, scopes, _, expires = solstice("list").output.rstrip("\n").split("\t")
    assert (name, scopes, expires) == ("release", "enqueue,read", "never")


def test_a_revoked_token_is_gone(solstice: Any, path: Path) -> None:
    for name in ("one", "two"):
        solstice("create", name, "--scope", "read")
    assert solstice("revoke", "one").output == "one is revoked\n"
    assert [token.name for token in read(path)] == ["two"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "one", "--scope", "read"), "there is a token 'one' already"),
        (("create", "a b", "--scope", "read"), "the name 'a b': must be"),
        (("create", "two", "--scope", "read", "--expires", "soon"), "--expires 'soon': must be"),
        (("revoke", "two"), "no token 'two' in .*: known are one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_reported_plainly(
    solstice: Any, path: Path, words: tuple[str, ...], sentence: str
) -> None:
    solstice("create", "one", "--scope", "read")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=sentence):
        solstice(*words)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "words", [("create", "one"), ("create", "one", "--scope", "all"), ("create",)], ids=" ".join
)
def test_a_scope_has_to_be_named(solstice: Any, path: Path, words: tuple[str, ...]) -> None:
    assert solstice(*words).exit_code == 2
    assert not path.exists()


def test_completion_knows_the_names(solstice: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("release", "review", "other"):
        solstice("create", name, "--scope", "read")
    monkeypatch.setenv("SOLSTICE_TOKENS", str(path))
    found = candidates(get_command(app), "solstice", ["token", "revoke"], "re")
    assert [each.value for each in found or ()] == ["release", "review"]
