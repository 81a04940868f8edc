"""The webhook secrets of `solstice up` are made once and stay private."""

import stat
from pathlib import Path

import pytest

from solstice_cli.local import secrets_file
from solstice_cli.secrets import FORGES, stored_secret, stored_secrets
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_secrets_are_made_once_and_kept() -> None:
    first = stored_secrets()
    assert stored_secrets() == first
    assert stored_secret(Source.GITHUB) == first[Source.GITHUB]


def test_every_forge_has_its_own() -> None:
    assert len(set(stored_secrets().values())) == len(FORGES)


def test_only_the_owner_may_read_them() -> None:
    stored_secrets()
    assert stat.S_IMODE(secrets_file().stat().st_mode) == 0o600


def test_no_secret_is_made_by_looking(home: Path) -> None:
    assert stored_secret(Source.GITHUB) is None
    assert not home.exists()


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"nobody": "x"}'], ids=["cut", "list", "unknown forge"])
def test_a_broken_file_is_named(home: Path, content: bytes) -> None:
    home.mkdir()
    secrets_file().write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"webhook-secrets\.json"):
        stored_secrets()
