"""A repository written by hand is one for git."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solstice_orchestrator.git.repository import object_format, quoted, write_repository
from tests.repositories import GIT_ENVIRONMENT

URL = 'https://forge.example/otters/a;b#c"d\\e.git'


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env={**GIT_ENVIRONMENT, "GIT_DIR": str(directory / ".git")},
        check=True,
        capture_output=True,
    )
    return done.stdout.decode("utf-8")


@pytest.mark.parametrize("form", ["sha1", "sha256"])
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "with a work tree"])
def test_git_takes_it_for_a_repository(tmp_path: Path, form: str, bare: bool) -> None:
    write_repository(tmp_path / ".git", url=URL, object_format=form, bare=bare)
    assert git(tmp_path, "config", "--null", "remote.origin.url") == f"{URL}\0"
    assert git(tmp_path, "rev-parse", "--show-object-format", "--is-bare-repository").split() == [
        form,
        str(bare).lower(),
    ]
    assert git(tmp_path, "fsck") == ""


@given(value=st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_git_reads_a_quoted_value_as_it_was(tmp_path: Path, value: str) -> None:
    (tmp_path / "config").write_text(f"[a]\n\tb = {quoted(value)}\n", encoding="utf-8", newline="")
    assert git(tmp_path, "config", "--null", "--file", str(tmp_path / "config"), "a.b") == f"{value}\0"


@pytest.mark.parametrize("value", ["a\0b", "a\rb"], ids=["NUL", "carriage return"])
def test_what_cannot_be_quoted_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="neither NUL nor carriage return"):
        quoted(value)


def test_the_length_of_an_id_decides_the_format_of_its_repository() -> None:
    assert (object_format("a" * 40), object_format("b" * 64)) == ("sha1", "sha256")
