"""Installed packages are pinned, with hashes, and without a registry."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = (
    "requirements.txt",
    "requirements-tools.txt",
    "tests/servers/requirements-kubernetes.txt",
    "tests/servers/requirements-nats-2.10.txt",
)
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")


def pins(name: str) -> dict[str, set[str]]:
    """Versions per package; a package may have several, for different machines."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if match := PIN.match(line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def pinned_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [
        Requirement(text)
        for text in [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    ]


@pytest.mark.parametrize("requirement", pinned_requirements(), ids=str)
def test_pin_fits_what_the_project_asks_for(requirement: Requirement) -> None:
    versions = pins("requirements.txt").get(canonicalize_name(requirement.name), set())
    assert versions, "run './just lock'"
    assert all(requirement.specifier.contains(version) for version in versions)


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_a_hash(name: str) -> None:
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + (ROOT / name).read_text())[1:]
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("name", FILES)
def test_no_registry_is_named(name: str) -> None:
    options = [line for line in (ROOT / name).read_text().splitlines() if line.startswith("-")]
    assert options == []
    assert "://" not in (ROOT / name).read_text()


def test_the_tools_are_uv_and_just_alone() -> None:
    assert sorted(pins("requirements-tools.txt")) == ["rust-just", "uv"]
