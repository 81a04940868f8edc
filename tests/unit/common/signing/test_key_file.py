"""Key files: their modes, and reloading when they change."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.signing.key_file import KeyFile, change_public, read_private, read_public, write_private
from tests.signing import KeyPair

PAIR = KeyPair()


def test_a_private_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = PAIR.write(tmp_path / "keys")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [key.name for key in read_private(path)] == ["forge"]
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_private(path)


def test_a_private_key_is_never_written_over_another(tmp_path: Path) -> None:
    path = PAIR.write(tmp_path)
    before = path.read_text()
    with pytest.raises(ConfigurationError, match="exists already"):
        write_private(path, "other")
    assert path.read_text() == before


def test_what_stands_in_the_way_of_a_private_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(ConfigurationError, match=f"folder {tmp_path}/keys"):
        PAIR.write(tmp_path / "keys")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="exists already"):
        write_private(tmp_path / "link", PAIR.text)
    assert not (tmp_path / "elsewhere").exists()


def test_no_part_of_a_private_key_is_left_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match="No space left"):
            PAIR.write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    PAIR.write(tmp_path)


def test_public_keys_that_others_may_write_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "verify.json"
    PAIR.publish(path)
    path.chmod(0o644)
    assert list(read_public(path)) == ["forge"]
    path.chmod(0o664)
    with pytest.raises(ConfigurationError, match="others may write"):
        read_public(path)


@pytest.mark.parametrize("content", [None, "{", '{"keys":[{}]}'])
def test_a_file_that_cannot_be_used_is_reported_with_its_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    for read in (read_public, read_private):
        with pytest.raises(ConfigurationError, match=str(path)):
            KeyFile(path, read)


def test_a_key_counts_from_when_it_is_written_until_it_is_revoked(tmp_path: Path) -> None:
    path, second = tmp_path / "verify.json", KeyPair("second")
    PAIR.publish(path)
    keys = KeyFile(path, read_public)
    assert list(keys.current()) == ["forge"]
    second.publish(path)
    assert list(keys.current()) == ["forge", "second"]
    change_public(path, lambda present: [key for key in present if key.name != "forge"])
    assert list(keys.current()) == ["second"]
    change_public(path, lambda _: [])
    assert not keys.current()


def test_keys_that_are_revoked_at_once_are_all_gone(tmp_path: Path) -> None:
    path, names = tmp_path / "verify.json", [f"key-{number}" for number in range(8)]
    for name in ["stays", *names]:
        KeyPair(name).publish(path)

    def revoke(name: str) -> None:
        change_public(path, lambda present: [key for key in present if key.name != name])

    with ThreadPoolExecutor(len(names)) as people:
        list(people.map(revoke, names))
    assert list(read_public(path)) == ["stays"]


def test_a_file_that_became_unusable_keeps_the_last_keys_and_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "verify.json"
    PAIR.publish(path)
    keys = KeyFile(path, read_public)
    good = path.read_bytes()
    with structlog.testing.capture_logs() as logs:
        for spoil in (lambda: path.write_text("{"), path.unlink):
            spoil()
            assert list(keys.current()) == list(keys.current()) == ["forge"]
        path.write_bytes(good)
        path.chmod(0o600)
        assert list(keys.current()) == ["forge"]
    assert [each["event"] for each in logs] == ["keys.unreadable", "keys.unreadable", "keys.read"]
