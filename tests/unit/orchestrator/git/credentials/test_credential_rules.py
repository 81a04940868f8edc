"""The first rule of GIT_CREDENTIALS that fits gives the credential; each has its host."""

import pytest

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.git.credentials.credential_rules import (
    AppAccess,
    CredentialRule,
    FetchOrigin,
    SshKeyAccess,
    TokenAccess,
    WithheldCredential,
    choose,
    parse_credential_rules,
)

FILE = """
[[rules]]
repositories = ["forge.example/river/otter"]
sources = ["forgejo"]
token = "file:otter"
[[rules]]
repositories = ["forge.example/river/*"]
token = "file:river"
user = "gitlab+deploy-token-1"
[[rules]]
repositories = ["forge.example/**"]
token = "file:readable-by-all"
untrusted = true
[[rules]]
repositories = ["inner.example:8080/*"]
token = "file:inner"
http = "allowed"
[[rules]]
repositories = ["forge.example/river/*"]
ssh_key = "file:key"
known_hosts = "hosts"
[[rules]]
repositories = ["github.com/river/*"]
github_app = { id = 7, private_key = "file:app.pem" }
"""


def token_of(url: str, source: str = "github", *, trusted: bool = True) -> str | None:
    fetch = FetchOrigin(repo_url=url, sources=frozenset({source}), is_trusted=trusted)
    chosen = choose(parse_credential_rules(FILE.encode()), fetch)
    if not isinstance(chosen, CredentialRule):
        return None
    match chosen.access:
        case (
            TokenAccess(token=reference) | SshKeyAccess(ssh_key=reference) | AppAccess(private_key=reference)
        ):
            return reference


@pytest.mark.parametrize(
    ("url", "source", "token"),
    [
        ("https://forge.example/river/otter.git", "forgejo", "file:otter"),
        ("https://forge.example/river/otter", "github", "file:river"),
        ("https://forge.example/lake/pike", "github", "file:readable-by-all"),
        ("https://forge.example:8443/river/otter", "github", None),
        ("https://forge.example.evil.example/river/otter", "github", None),
        ("https://evil.example/forge.example/river/otter", "github", None),
        ("http://forge.example/river/otter", "github", None),
        ("ssh://git@forge.example/river/otter", "github", "file:key"),
        ("https://github.com/river/otter.git", "github", "file:app.pem"),
        ("ssh://git@github.com/river/otter.git", "github", None),
        ("ssh://git@forge.example:2222/river/otter", "github", None),
        ("http://inner.example:8080/a", "github", "file:inner"),
        ("https://inner.example:8080/a", "github", "file:inner"),
    ],
)
def test_the_first_rule_that_fits_gives_the_credential(url: str, source: str, token: str | None) -> None:
    assert token_of(url, source) == token


def test_untrusted_runs_get_only_what_the_operator_gives_them() -> None:
    assert token_of("https://forge.example/river/otter", trusted=False) == "file:readable-by-all"
    fetch = FetchOrigin(repo_url="https://forge.example/a", sources=frozenset({"github"}), is_trusted=False)
    rule = CredentialRule(repositories=("forge.example/a",), access=TokenAccess(token="file:t"))
    assert isinstance(choose((rule,), fetch), WithheldCredential)
    assert choose((), fetch) is None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('repositories = ["**"]\ntoken = "file:t"', "rules[1].repositories[1]: must begin with the host"),
        ('repositories = ["*/river/*"]\ntoken = "file:t"', "must begin with the host"),
        ('repositories = ["forge.*/river/*"]\ntoken = "file:t"', "must begin with the host"),
        ('repositories = ["forge.example"]\ntoken = "file:t"', "must begin with the host"),
        ('repositories = ["forge.example/*"]\ntoken = "ghp_plaNted"', "rules[1].token: a secret does not stand here"),
        ('repositories = ["forge.example/*"]\ntoken = "file:t"\nuser = "a:b"', "rules[1].user: must be the name"),
        ('repositories = ["forge.example/*"]', "must have one of token, ssh_key and github_app"),
        ('repositories = ["github.com/*"]\ngithub_app = { id = 7, private_key = "file:k", api_url = "http://a.example" }', "must be an https URL"),
        ('repositories = ["github.com/*"]\ngithub_app = { id = 7, private_key = "-----BEGIN plaNted" }', "a secret does not stand here"),
        ('repositories = ["forge.example/*"]\nssh_key = "file:k"', "must have known_hosts"),
        ('repositories = ["forge.example/*"]\nssh_key = "file:k"\nknown_hosts = "h"\nuser = "git"', "are for token alone"),
        ('repositories = []\ntoken = "file:t"', "rules[1].repositories"),
        ('repositories = ["forge.example/*"]\ntokn = "file:t"', "rules[1]: 'tokn' is no key here, did you mean 'token'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_without_the_secret(rule: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_credential_rules(f"[[rules]]\n{rule}".encode())
    assert words in str(caught.value)
    assert "plaNted" not in str(caught.value)
