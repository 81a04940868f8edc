"""Sources and their secrets, as the settings define them."""

import base64

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_forge.decisions.sources import (
    FORGES,
    SourceApp,
    WebhookSource,
    how_to_configure,
    sources_of,
    unverified_source,
)
from solstice_forge.settings import ForgeSettings

TOKEN = "whsec_" + base64.b64encode(b"k" * 32).decode()


def settings(**given: str) -> ForgeSettings:
    return load_settings(ForgeSettings, **given)


def test_source_exists_once_its_secret_is_set() -> None:
    assert sources_of(settings()) == {}
    sources = sources_of(settings(forgejo_webhook_secret="one"))
    assert list(sources) == ["forgejo"]
    assert sources["forgejo"].forge is FORGES[Source.FORGEJO]
    assert sources["forgejo"].secrets == ("one",)


def test_public_forges_have_their_well_known_address_and_others_none() -> None:
    given = settings(github_webhook_secret="1", gitlab_webhook_secret="2", gitea_webhook_secret="3")
    assert {name: source.url for name, source in sources_of(given).items()} == {
        "github": "https://github.com",
        "gitlab": "https://gitlab.com",
        "gitea": None,
    }


def test_a_forge_is_known_without_its_secrets() -> None:
    source = unverified_source("github")
    assert source is not None
    assert (source.name, source.forge, source.secrets, source.url) == (
        "github",
        FORGES[Source.GITHUB],
        (),
        "https://github.com",
    )
    assert unverified_source("river") is None


@pytest.mark.parametrize(
    "name",
    [
        "github_webhook_secret",
        "forgejo_webhook_secret",
        "gitea_webhook_secret",
        "gitlab_webhook_secret",
        "gitlab_signing_token",
    ],
)
def test_a_secret_too_short_to_be_one_of_several_is_named_by_its_setting(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sources_of(settings(**{name: "12345678,1234567"}))
    assert str(caught.value).startswith(f"{name.upper()}: ")


def test_eight_characters_are_enough_for_one_of_several_secrets() -> None:
    assert len(sources_of(settings(gitea_webhook_secret="12345678,abcdefgh"))["gitea"].secrets) == 2


def test_several_live_secrets_are_separated_by_commas_or_line_breaks() -> None:
    given = " a new secret, the old one\nthe oldest,,"
    assert sources_of(settings(github_webhook_secret=given))["github"].secrets == (
        "a new secret",
        "the old one",
        "the oldest",
    )


def test_words_of_a_passphrase_are_never_secrets_of_their_own() -> None:
    """Otherwise a sender who guesses one word of it could sign."""
    whole = "It is a secret to everybody"
    assert sources_of(settings(github_webhook_secret=whole))["github"].secrets == (whole,)
    with pytest.raises(ConfigurationError, match=r"GITHUB_WEBHOOK_SECRET.*without commas") as caught:
        sources_of(settings(github_webhook_secret="well, that is a secret"))
    assert "that is" not in str(caught.value)


@pytest.mark.parametrize("secret", ["", " ", ", ,"])
def test_empty_secret_makes_no_source(secret: str) -> None:
    assert sources_of(settings(gitea_webhook_secret=secret)) == {}


def test_gitlab_takes_tokens_and_signing_tokens_beside_each_other() -> None:
    sources = sources_of(
        settings(
            gitlab_webhook_secret="plain", gitlab_signing_token=f"{TOKEN}, {TOKEN.removeprefix('whsec_')}"
        )
    )
    assert sources["gitlab"].secrets == ("plain", TOKEN, TOKEN)


@pytest.mark.parametrize("token", ["whsec_", "whsec_%%%"])
def test_signing_token_that_is_none_is_reported_at_the_start(token: str) -> None:
    with pytest.raises(ConfigurationError, match="GITLAB_SIGNING_TOKEN"):
        sources_of(settings(gitlab_signing_token=token))


def test_secrets_are_never_printed() -> None:
    given = settings(github_webhook_secret="hush-hush", gitlab_signing_token=TOKEN)
    for shown in (repr(given), str(given), repr(sources_of(given)), given.model_dump_json()):
        assert "hush-hush" not in shown
        assert TOKEN not in shown


def test_credentials_of_a_source_are_never_printed() -> None:
    app = SourceApp(id=1, private_key="hush-key")
    whole = WebhookSource(
        name="acme", forge=FORGES[Source.GITHUB], secrets=("hush-secret",), token="hush-token", app=app
    )
    assert "hush" not in repr(whole) + str(whole) + repr(app)


@pytest.mark.parametrize("name", FORGES)
def test_unconfigured_source_says_which_setting_makes_it_exist(name: Source) -> None:
    also = " or GITLAB_SIGNING_TOKEN" if name is Source.GITLAB else ""
    assert f"set {name.upper()}_WEBHOOK_SECRET{also} here" in how_to_configure(name)


def test_only_gitlab_has_a_signing_token_beside_its_secret() -> None:
    assert [name for name in FORGES if "SIGNING_TOKEN" in how_to_configure(name)] == [Source.GITLAB]


def test_unknown_source_says_which_are_known() -> None:
    assert "forgejo, gitea, github, gitlab" in how_to_configure("sourcehut")


@pytest.mark.parametrize("url", ["", "sqlite:///", "mysql://h/d", "/var/lib/inbox"])
def test_inbox_is_a_file_or_a_postgresql(url: str) -> None:
    with pytest.raises(ConfigurationError, match="FORGE_INBOX_URL"):
        settings(forge_inbox_url=url)


def test_inbox_is_in_the_state_directory_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLSTICE_HOME", "/somewhere")
    assert settings().forge_inbox_url == "sqlite:////somewhere/inbox.sqlite3"
