"""The secrets of a job depend on its repository; strangers' code gets none."""

from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.values.references import References
from solstice_common.values.repo_urls import name_of
from solstice_orchestrator.worker.secret_rules import (
    GivenSecrets,
    SecretRules,
    WithheldSecrets,
    parse_secret_rules,
    read_secret_rules,
)
from tests.builders import job_request

ENVIRON = {"NPM_TOKEN": "npm-token-of-all", "SHORT": "short"}
FILE = """
[[rules]]
repositories = ["forge.example/lantern/harbour"]
secrets = { NPM_TOKEN = "plain:npm-token-of-harbour", LOST = "file:lost", SHORT = "env:SHORT", UNSET = "env:UNSET" }
[[rules]]
repositories = ["forge.example/**"]
secrets = { NPM_TOKEN = "env:NPM_TOKEN", DEPLOY_KEY = "file:deploy-key" }
"""


@pytest.fixture
def rules(tmp_path: Path) -> SecretRules:
    (tmp_path / "deploy-key").write_text("the deploy key\n")
    return parse_secret_rules(FILE.encode(), References(folder=tmp_path, environ=ENVIRON))


def test_first_rule_that_names_the_secret_gives_it(rules: SecretRules) -> None:
    given = rules.give({"NPM_TOKEN", "DEPLOY_KEY"}, job_request())
    assert isinstance(given, GivenSecrets)
    assert given.values == {"NPM_TOKEN": "npm-token-of-harbour", "DEPLOY_KEY": "the deploy key"}
    elsewhere = rules.give({"NPM_TOKEN"}, job_request(repo_url="https://forge.example/lantern/quay"))
    assert isinstance(elsewhere, GivenSecrets)
    assert elsewhere.values == {"NPM_TOKEN": "npm-token-of-all"}


def test_changed_secret_is_used_from_then_on(rules: SecretRules, tmp_path: Path) -> None:
    (tmp_path / "deploy-key").write_text("another deploy key")
    given = rules.give({"DEPLOY_KEY"}, job_request())
    assert isinstance(given, GivenSecrets)
    assert given.values["DEPLOY_KEY"] == "another deploy key"


@pytest.mark.parametrize(
    "untrusted",
    [
        {"trusted": False},
        {"trusted": None},
        {"trusted": False, "approves": True},
        {"trusted": False, "needs_approval": True},
    ],
    ids=["a fork's", "not said", "with somebody's word", "approved"],
)
def test_strangers_are_given_nothing(rules: SecretRules, untrusted: dict[str, bool]) -> None:
    withheld = rules.give({"NPM_TOKEN"}, job_request(**untrusted))
    assert isinstance(withheld, WithheldSecrets)
    assert "may not push" in withheld.detail


WITHHELD = {
    "of no rule": ("OTHER", "https://forge.example/lantern/harbour.git", "there is no secret OTHER"),
    "of another repository": ("DEPLOY_KEY", "https://other.example/lantern/harbour", "other.example/lantern"),
    "of a host that looks alike": ("NPM_TOKEN", "https://forge.example.evil/x", "there is no secret"),
    "of a path that looks alike": ("NPM_TOKEN", "https://evil/forge.example/x", "there is no secret"),
    "file that is not there": ("LOST", "https://forge.example/lantern/harbour", "cannot be used"),
    "unset variable": ("UNSET", "https://forge.example/lantern/harbour", "cannot be used"),
    "too short to mask": ("SHORT", "https://forge.example/lantern/harbour", "cannot be used"),
}


@pytest.mark.parametrize(("name", "url", "reported"), WITHHELD.values(), ids=WITHHELD)
def test_missing_secret_is_reported_without_the_operator_s_matters(
    rules: SecretRules, tmp_path: Path, name: str, url: str, reported: str
) -> None:
    withheld = rules.give({name}, job_request(repo_url=url))
    assert isinstance(withheld, WithheldSecrets)
    assert reported in withheld.detail
    assert str(tmp_path) not in withheld.detail
    assert bool(withheld.trouble) is ("cannot be used" in reported)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://Forge.example/river/otter.git", "forge.example/river/otter"),
        ("ssh://git@forge.example:2222/river/otter.git/", "forge.example:2222/river/otter"),
        ("file:///srv/git/otter", "/srv/git/otter"),
        ("file://localhost/srv/git/otter", "/srv/git/otter"),
    ],
)
def test_repository_is_called_by_where_it_is_fetched_from(url: str, place: str) -> None:
    assert name_of(url) == place


def test_nothing_secret_is_printed(rules: SecretRules) -> None:
    given = rules.give({"NPM_TOKEN", "DEPLOY_KEY"}, job_request())
    for shown in (repr(given), repr(rules)):
        assert "npm-token" not in shown
        assert "deploy key" not in shown


def test_without_a_file_there_are_no_secrets() -> None:
    assert isinstance(read_secret_rules("", ENVIRON).give({"NPM_TOKEN"}, job_request()), WithheldSecrets)


MISTAKES = {
    "not TOML": ("[[rules", "is not TOML"),
    "unknown key": ("[[rule]]", "'rule' is no key here, did you mean 'rules'"),
    "no repositories": ("[[rules]]\nsecrets = {}", "rules[1].repositories"),
    "glob": ("[[rules]]\nrepositories = ['a[']\nsecrets = {}", "without its ]"),
    "secret as it is": (
        "[[rules]]\nrepositories = ['a']\nsecrets = { KEY = 'hush' }",
        "rules[1].secrets.KEY",
    ),
    "name": ("[[rules]]\nrepositories = ['a']\nsecrets = { 'A-B' = 'plain:x' }", "named like a variable"),
    "name of ours": ("[[rules]]\nrepositories = ['a']\nsecrets = { SOLSTICE_X = 'plain:x' }", "SOLSTICE_"),
}


@pytest.mark.parametrize(("content", "reported"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_in_the_file_is_reported(tmp_path: Path, content: str, reported: str) -> None:
    file = tmp_path / "secrets.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        read_secret_rules(str(file), ENVIRON)
    assert f"SECRETS_CONFIG {file}" in str(caught.value)
    assert reported in str(caught.value)
    assert "hush" not in str(caught.value)


def test_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read"):
        read_secret_rules(str(tmp_path / "lost.toml"), ENVIRON)
