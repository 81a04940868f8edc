"""The versions of git that are too old for the settings."""

import pytest

from solstice_orchestrator.git.version import git_problem


@pytest.mark.parametrize(
    "output",
    [
        "git version 2.37.0",
        "git version 2.39.5 (Apple Git-154)",
        "git version 3.0.rc0",
        "git version 2.100.1",
    ],
)
def test_a_git_that_will_do(output: str) -> None:
    assert git_problem(output) is None


@pytest.mark.parametrize(
    ("output", "detail"),
    [
        ("git version 2.36.9", "older than git 2.37"),
        ("git version 1.99.0", "older than git 2.37"),
        ("", "unknown"),
        ("another program", "unknown"),
    ],
)
def test_a_git_that_will_not(output: str, detail: str) -> None:
    assert detail in (git_problem(output) or "")
