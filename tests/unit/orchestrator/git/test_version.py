"""Which git is too old for what it is asked."""

import pytest

from solstice_orchestrator.git.version import git_problem


@pytest.mark.parametrize(
    "said",
    [
        "git version 2.37.0",
        "git version 2.39.5 (Apple Git-154)",
        "git version 3.0.rc0",
        "git version 2.100.1",
    ],
)
def test_a_git_that_will_do(said: str) -> None:
    assert git_problem(said) is None


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ("git version 2.36.9", "older than git 2.37"),
        ("git version 1.99.0", "older than git 2.37"),
        ("", "unknown"),
        ("another program", "unknown"),
    ],
)
def test_a_git_that_will_not(said: str, detail: str) -> None:
    assert detail in (git_problem(said) or "")
