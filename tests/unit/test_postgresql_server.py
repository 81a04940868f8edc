"""Which PostgreSQL the tests take, and what they say when there is none."""

from pathlib import Path

import pytest

from tests.servers import postgresql
from tests.servers.postgresql import ForeignPostgreSQL, own_postgresql, shared_postgresql
from tests.servers.postgresql_cluster import PostgreSQLCluster


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without a URL, Docker, PostgreSQL, or the right to install one."""
    monkeypatch.delenv(postgresql.URL_VARIABLE, raising=False)
    monkeypatch.setattr(postgresql, "docker_answers", lambda: False)
    monkeypatch.setattr(postgresql, "apt_can_install", lambda: False)
    monkeypatch.setattr(postgresql, "DEBIAN", tmp_path / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return monkeypatch


def install(programs: Path, version: str) -> Path:
    """Programs that can say their version and nothing else."""
    programs.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = programs / name
        program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\nexit 1\n")
        program.chmod(0o755)
    return programs


def test_without_any_postgresql_the_tests_say_what_to_install(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as nothing:
        own_postgresql()
    for way in ("Docker", "apt-get install postgresql", "root", "SOLSTICE_TEST_POSTGRES_URL"):
        assert way in str(nothing.value)


def test_a_url_is_used_before_anything_else(bare: pytest.MonkeyPatch) -> None:
    bare.setenv(postgresql.URL_VARIABLE, "postgresql://u:p@db.example:5433/postgres")
    server = shared_postgresql()
    assert isinstance(server, ForeignPostgreSQL)
    assert server.url("test_1") == "postgresql://u:p@db.example:5433/test_1"


def test_a_foreign_server_is_never_stopped(bare: pytest.MonkeyPatch) -> None:
    server = ForeignPostgreSQL("postgresql://db.example/postgres")
    for harm in (server.stop, server.kill, server.restart):
        with pytest.raises(RuntimeError, match="not ours"):
            harm()


def test_apt_is_asked_when_there_is_nothing_else(bare: pytest.MonkeyPatch) -> None:
    packages: list[str] = []
    bare.setattr(postgresql, "apt_can_install", lambda: True)
    bare.setattr(postgresql, "apt_install", packages.append)
    with pytest.raises(RuntimeError):
        own_postgresql()
    assert packages == ["postgresql"]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"15/bin": "15.14 (Debian 15.14-0+deb12u1)", "9.6/bin": "9.6.24", "17/bin": "17.2"}, "17/bin"),
        ({"14/bin": "14.19"}, None),
        ({"18/bin": "18rc1"}, "18/bin"),
    ],
    ids=["newest", "too-old", "before-its-release"],
)
def test_the_newest_postgresql_that_is_new_enough_is_taken(
    bare: pytest.MonkeyPatch, tmp_path: Path, versions: dict[str, str], expected: str | None
) -> None:
    for folder, version in versions.items():
        install(tmp_path / "postgresql" / folder, version)
    found = postgresql._installed()
    assert found == (None if expected is None else tmp_path / "postgresql" / expected)


def test_one_on_path_is_found_where_it_really_is(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = install(tmp_path / "cellar" / "bin", "17.6")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "postgres").symlink_to(real / "postgres")
    assert postgresql._installed() == real


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    broken = PostgreSQLCluster(install(tmp_path / "bin", "0 broken"))
    (tmp_path / "bin").chmod(0o755)
    with pytest.raises(RuntimeError, match="initdb failed"), broken:
        pass
    assert not broken.directory.exists()
