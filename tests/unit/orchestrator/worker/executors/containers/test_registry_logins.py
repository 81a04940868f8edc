"""Which login fetches an image, and for whom."""

import base64
import json

import pytest

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.worker.executors.containers.registry_logins import (
    LoginRefused,
    LoginRule,
    auth_file,
    login_of,
    parse_login_rules,
)

FILE = b"""
[[rules]]
images = ["ghcr.io/river/*"]
user = "river-ci"
password = "env:RIVER"
repositories = ["forge.example/river/*"]

[[rules]]
images = ["registry.example:5000/**"]
user = "all"
password = "file:token"
untrusted = true
"""
RIVER = "https://forge.example/river/otter.git"
LAKE = "https://forge.example/lake/heron.git"


@pytest.mark.parametrize(
    ("image", "repo_url", "is_trusted", "user"),
    [
        ("ghcr.io/river/build:1", RIVER, True, "river-ci"),
        ("ghcr.io/river/build@sha256:" + "a" * 64, RIVER, True, "river-ci"),
        ("ghcr.io/river/build:1", RIVER, False, LoginRefused()),
        ("ghcr.io/river/build:1", LAKE, True, LoginRefused()),
        ("ghcr.io/river/build:1", "no url", True, LoginRefused()),
        ("ghcr.io/other/build:1", RIVER, True, None),
        ("ghcr.io.evil.example/river/build:1", RIVER, True, None),
        ("registry.example:5000/a/b/c:1", LAKE, False, "all"),
        ("registry.example/a/b/c:1", LAKE, True, None),
    ],
)
def test_a_login_serves_its_images_for_its_repositories_and_trusted_runs(
    image: str, repo_url: str, *, is_trusted: bool, user: str | LoginRefused | None
) -> None:
    login = login_of(image, parse_login_rules(FILE), repo_url, is_trusted=is_trusted)
    assert (login.user if isinstance(login, LoginRule) else login) == user


def test_a_login_is_for_the_registry_of_its_image_alone() -> None:
    content = json.loads(auth_file("ghcr.io/river/build:1", "river-ci", "a:b"))
    assert content == {"auths": {"ghcr.io": {"auth": base64.b64encode(b"river-ci:a:b").decode()}}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('images = ["*/river/*"]', "must begin with the registry"),
        ('images = ["river/*"]', "must begin with the registry"),
        ('images = ["ghcr.io"]', "must begin with the registry"),
        ("images = []", "images"),
        ('images = ["ghcr.io/x"]\npasword = "x"', "did you mean 'password'"),
        ('images = ["ghcr.io/x"]\nuser = "a:b"', "without ':'"),
        ('images = ["ghcr.io/x"]\nuser = "a"\npassword = "hunter2"', "a secret does not stand here"),
    ],
)
def test_a_mistake_in_the_file_is_named_without_its_secrets(wrong: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        parse_login_rules(f"[[rules]]\n{wrong}\n".encode())
    assert "hunter2" not in str(raised.value)
