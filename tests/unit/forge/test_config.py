"""The file of sources: its values, and each mistake named with its key."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority, Source
from solstice_common.values.references import References
from solstice_forge.config import configured_sources, parse_sources
from solstice_forge.decisions.rules import ALL_EVENTS, Forks, Rule, RuleEvent
from solstice_forge.decisions.sources import FORGES, SourceApp, WebhookSource
from solstice_forge.settings import ForgeSettings

ENVIRON = {"ACME_SECRET": "a secret of acme", "ACME_TOKEN": "a token"}
KEY = "-----BEGIN RSA PRIVATE KEY-----"
WHOLE = """
[sources.acme]
forge = "forgejo"
url = "https://forge.example/"
secrets = ["env:ACME_SECRET", "file:old", "plain:for trials"]
token = "env:ACME_TOKEN"
[[sources.acme.rules]]
name = "rivers"
repositories = ["river/*"]
events = ["push", "tag"]
branches = ["main", "release/**"]
paths = ["src/**"]
priority = "high"
runs-on = "linux"
forks = "all"
[[sources.acme.rules]]

[sources.hub]
forge = "github"
secrets = ["plain:x"]
[sources.hub.app]
id = 7
private_key = "file:app.pem"
"""


def parsed(text: str, folder: Path = Path("/nowhere")) -> dict[str, WebhookSource]:
    return dict(parse_sources(text.encode(), References(folder=folder, environ=ENVIRON)))


def source(more: str, *, forge: str = "forgejo", secrets: str = '["plain:secret"]') -> str:
    return f"[sources.acme]\nforge = '{forge}'\nsecrets = {secrets}\n{more}"


def test_whole_file_becomes_sources(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("the old secret\n")
    (tmp_path / "app.pem").write_text(f"{KEY}\n")
    sources = parsed(WHOLE, tmp_path)
    assert sources["acme"] == WebhookSource(
        name="acme",
        forge=FORGES[Source.FORGEJO],
        secrets=("a secret of acme", "the old secret", "for trials"),
        url="https://forge.example",
        token="a token",
        rules=(
            Rule(
                name="rivers",
                repositories=("river/*",),
                events=frozenset({RuleEvent.PUSH, RuleEvent.TAG}),
                branches=("main", "release/**"),
                paths=("src/**",),
                priority=Priority.HIGH,
                runs_on="linux",
                forks=Forks.ALL,
            ),
            Rule(name="rule 2", events=ALL_EVENTS, forks=Forks.APPROVE),
        ),
    )
    assert sources["hub"].app == SourceApp(id=7, private_key=KEY)
    assert sources["hub"].url == "https://github.com"


def test_nothing_secret_is_printed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("the old secret\n")
    (tmp_path / "app.pem").write_text(KEY)
    shown = repr(parsed(WHOLE, tmp_path))
    assert not any(secret in shown for secret in (*ENVIRON.values(), "the old secret", "for trials", KEY))


MISTAKES = {
    "unknown key": (source("tokem = 'env:ACME_TOKEN'"), "sources.acme: 'tokem'.*did you mean 'token'"),
    "unknown table": ("[source.acme]\n", "'source' is no key here, did you mean 'sources'"),
    "unknown key of a rule": (
        source("[[sources.acme.rules]]\n[[sources.acme.rules]]\nbranch = ['main']"),
        r"sources\.acme\.rules\[2\]: 'branch' is no key here, did you mean 'branches'",
    ),
    "no sources": ("", r"there is none: add a table \[sources.NAME\]"),
    "empty sources": ("[sources]", r"add a table \[sources.NAME\]"),
    "not TOML": ("[sources.acme]\nforge = \n", "is not TOML: .*line 2"),
    "name": ("[sources.'a/b']\nforge = 'gitea'\nsecrets = ['plain:x']", "sources.a/b: a source's name"),
    "forge": (source("", forge="sourcehut"), "sources.acme.forge: .*github"),
    "forge without webhooks": (source("", forge="manual"), "sources.acme.forge: must be one of"),
    "no secrets": (source("", secrets="[]"), "sources.acme.secrets: must not be empty"),
    "secret as it is": (source("", secrets="['hush']"), r"secrets\[1\]: .*env:NAME"),
    "secret without a kind": (source("", secrets="['env']"), r"secrets\[1\]: .*env:NAME"),
    "unset variable": (source("", secrets="['env:LOST']"), r"secrets\[1\]: .*LOST is not set"),
    "file that is not there": (source("", secrets="['file:lost']"), r"/nowhere/lost cannot be read"),
    "empty plain": (source("", secrets="['plain:']"), r"secrets\[1\]: holds nothing"),
    "short secret beside another": (source("", secrets="['plain:x', 'plain:y']"), "at least 8 characters"),
    "signing token": (source("", forge="gitlab", secrets="['plain:whsec_%']"), "signing token"),
    "url": (source("url = 'forge.example'"), "sources.acme.url: must be the forge's address"),
    "credentials in the url": (source("url = 'https://me:hush@forge.example'"), "url: must not hold cred"),
    "token without url": (source("token = 'env:ACME_TOKEN'"), "url: is missing"),
    "token with a space": (
        source("url = 'https://forge.example'\ntoken = 'plain:hush '"),
        "token: begins or ends with a space",
    ),
    "token that fits no header": (
        source("url = 'https://forge.example'\ntoken = 'plain:hush☃'"),
        "or has characters that no token has",
    ),
    "app elsewhere": (source("[sources.acme.app]\nid = 1\nprivate_key = 'plain:-----BEGIN'"), "only GitHub"),
    "app and token": (
        source("token='plain:t'\napp={id = 1, private_key = 'plain:-----BEGIN'}", forge="github"),
        "not both",
    ),
    "app without key": (source("[sources.acme.app]\nid = 1", forge="github"), "app.private_key: is missing"),
    "key that is none": (source("app={id = 1, private_key = 'plain:hush'}", forge="github"), "in PEM form"),
    "event": (
        source("[[sources.acme.rules]]\nevents = ['pushed']"),
        r"rules\[1\].events\[1\]: must be one of push, ",
    ),
    "glob": (source("[[sources.acme.rules]]\npaths = ['a[']"), r"rules\[1\].paths\[1\]: .*without its \]"),
    "no glob": (source("[[sources.acme.rules]]\nbranches = []"), r"branches: must not be empty"),
    "priority": (
        source("[[sources.acme.rules]]\npriority = 'urgent'"),
        r"rules\[1\].priority: must be one of critical, ",
    ),
    "label": (source("[[sources.acme.rules]]\nruns-on = 'a b'"), r"rules\[1\].runs-on: must be a label"),
    "forks": (
        source("[[sources.acme.rules]]\nforks = 'some'"),
        r"rules\[1\].forks: must be one of none, approve, ",
    ),
}


@pytest.mark.parametrize(("text", "reported"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_named_with_its_key(text: str, reported: str) -> None:
    with pytest.raises(ConfigurationError, match=reported) as caught:
        parsed(text)
    assert "hush" not in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    text = source("url = 'x'\n[[sources.acme.rules]]\nforks = 'some'", secrets="['env:LOST']")
    with pytest.raises(ConfigurationError, match="3 mistakes:") as caught:
        parsed(text)
    assert [key in str(caught.value) for key in ("secrets[1]", "acme.url", "rules[1].forks")] == [True] * 3


@given(st.text() | st.text(alphabet="[]sources.acme='\"\n:{},").map(lambda text: f"[sources.a]\n{text}"))
def test_no_file_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        parsed(text)


def test_file_takes_the_place_of_secrets_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "forges.toml"
    file.write_text(source(""))
    settings = load_settings(ForgeSettings, forge_config=str(file), github_webhook_secret="another")
    assert list(configured_sources(settings, {})) == ["acme"]


def test_without_a_file_the_secrets_of_the_environment_make_sources() -> None:
    settings = load_settings(ForgeSettings, gitea_webhook_secret="one")
    assert list(configured_sources(settings, {})) == ["gitea"]


@pytest.mark.parametrize("content", [b"\xff", b"[", None], ids=["not UTF-8", "not TOML", "not there"])
def test_unusable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "forges.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"FORGE_CONFIG {file}: "):
        configured_sources(load_settings(ForgeSettings, forge_config=str(file)), {})
