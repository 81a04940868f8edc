"""`solstice keys` makes a pair, lists what it may sign, and revokes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solstice_cli.main import app
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.signing.jws import is_genuine, read_signature, sign
from solstice_common.signing.key_file import read_private, read_public
from solstice_common.signing.keys import Right


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return tmp_path / "verify-keys.json"


@pytest.fixture
def solstice(tmp_path: Path) -> Any:
    def invoke(*words: str) -> Any:
        result = CliRunner().invoke(
            app, ["keys", *words], env={"SOLSTICE_HOME": str(tmp_path), "COLUMNS": "200"}
        )
        if isinstance(result.exception, ConfigurationError):
            raise result.exception
        return result

    return invoke


def test_what_the_private_key_signs_the_public_one_verifies(
    solstice: Any, tmp_path: Path, public: Path
) -> None:
    made = solstice(
        *("create", "forge-1", "--source", "github", "--repository", "github.com/river/*"),
        *("--right", "trusted", "--right", "cancels"),
    )
    path = Path(made.stdout.strip())
    assert path == tmp_path / "keys" / "forge-1.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"SIGNING_KEYS={path}" in made.stderr
    key = read_public(public)["forge-1"]
    assert key.scope.sources == {Source.GITHUB}
    assert key.scope.repositories == ("github.com/river/*",)
    assert key.scope.rights == {Right.TRUSTED, Right.CANCELS}
    (text,) = sign([b"body"], "jobrequest.v1", read_private(path)[0])
    signature = read_signature(text)
    assert signature is not None
    assert is_genuine(signature, b"body", key)


def test_by_default_a_key_signs_for_every_repository_and_strangers_code_alone(
    solstice: Any, public: Path
) -> None:
    made = solstice("create", "forge")
    assert "--right trusted" in made.stderr
    scope = read_public(public)["forge"].scope
    assert (scope.sources, scope.repositories, scope.rights) == (frozenset(Source), ("**",), frozenset())
    assert "strangers" not in solstice("create", "other", "--right", "trusted").stderr


def test_json_names_both_files_and_no_secret(solstice: Any, tmp_path: Path, public: Path) -> None:
    to = tmp_path / "elsewhere" / "key.json"
    made = json.loads(solstice("create", "forge", "--right", "trusted", "--to", str(to), "--json").stdout)
    assert (made["private"], made["public"]) == (str(to), str(public))
    (listed,) = json.loads(solstice("list", "--json").output)["keys"]
    assert listed == {name: value for name, value in made.items() if name not in {"private", "public"}}
    assert json.loads(to.read_text())["d"] not in json.dumps(made) + public.read_text()


def test_in_a_pipe_the_list_is_tab_separated(solstice: Any) -> None:
    solstice("create", "forge", "--source", "github", "--source", "manual", "--right", "trusted")
    name, sources, repositories, rights, _ = solstice("list").output.rstrip("\n").split("\t")
    assert (name, sources, repositories, rights) == ("forge", "github,manual", "**", "trusted")


def test_a_revoked_key_is_gone_and_the_last_one_is_reported(solstice: Any, public: Path) -> None:
    for name in ("one", "two"):
        solstice("create", name)
    assert solstice("revoke", "one").output == "one is revoked\n"
    assert list(read_public(public)) == ["two"]
    assert "refuse every request" in solstice("revoke", "two").stderr
    assert read_public(public) == {}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("create", "one"), "there is a key 'one' already"),
        (("create", "a b"), "the name 'a b': must be"),
        (("create", "two", "--repository", "a["), r"--repository: 'a\['"),
        (("create", "two", "--to", "KEY"), "exists already"),
        (("revoke", "two"), "no key 'two' in .*: known are one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_changes_nothing(
    solstice: Any, tmp_path: Path, public: Path, words: tuple[str, ...], sentence: str
) -> None:
    made = Path(solstice("create", "one").stdout.strip())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    with pytest.raises(ConfigurationError, match=sentence):
        solstice(*(str(made) if word == "KEY" else word for word in words))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
