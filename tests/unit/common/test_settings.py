"""Settings of the broker: defaults, descriptions, and the report of wrong values."""

from pathlib import Path
from urllib.parse import quote

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_common.settings import (
    BrokerSettings,
    ClientSettings,
    sqlite_path,
    state_directory,
    without_password,
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in (*BrokerSettings.model_fields, *ClientSettings.model_fields):
        monkeypatch.delenv(field.upper(), raising=False)


def test_the_defaults_are_the_published_ones() -> None:
    assert BrokerSettings().model_dump() == {
        "amqp_url": "amqp://127.0.0.1:5672/%2f",
        "amqp_password_file": "",
        "amqp_exchange": "solstice.jobs",
        "amqp_queue": "solstice.jobs.v1",
        "amqp_routing_key": "jobrequest.v1",
        "amqp_dlx": "solstice.dlx",
        "amqp_dlq": "solstice.jobs.v1.dlq",
        "amqp_priorities": "one",
        "amqp_prefetch": 64,
        "amqp_queue_type": "quorum",
        "dead_letter_enabled": True,
        "broker_require_durable": False,
        "nats_monitor_url": "",
        "nats_sync_always": False,
    }


@pytest.mark.parametrize("model", [BrokerSettings, ClientSettings])
def test_every_setting_has_a_description_for_help_and_docs(model: type[BrokerSettings]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AMQP_URL", "http://127.0.0.1", "amqp://"),
        ("AMQP_URL", "", "amqp://"),
        ("AMQP_PREFETCH", "0", "must be at least 1"),
        ("AMQP_PREFETCH", "65536", "must be at most 65535"),
        ("AMQP_PREFETCH", "many", "must be a whole number"),
        ("AMQP_QUEUE_TYPE", "stream", "must be one of quorum, classic"),
        ("AMQP_QUEUE", "", "must not be empty"),
        ("AMQP_EXCHANGE", "", "must not be empty"),
        ("AMQP_DLQ", "x" * 247, "at most 246 characters"),
        ("AMQP_PRIORITIES", "", "must be one of one, split"),
        ("AMQP_PRIORITIES", "critical", "must be one of one, split"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as raised:
        load_settings(BrokerSettings)
    assert str(raised.value).startswith(f"{name}: ")
    assert message in str(raised.value)


def test_all_wrong_values_are_reported_at_once_and_none_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "http://heron:secret@127.0.0.1")
    monkeypatch.setenv("AMQP_PREFETCH", "0")
    with pytest.raises(ConfigurationError) as raised:
        load_settings(BrokerSettings)
    assert "AMQP_URL: " in str(raised.value)
    assert "AMQP_PREFETCH: " in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_PREFETCH", "10")
    assert load_settings(BrokerSettings).amqp_prefetch == 10
    assert load_settings(BrokerSettings, amqp_prefetch="20").amqp_prefetch == 20


def test_other_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_SOMETHING_ELSE", "x")
    assert load_settings(BrokerSettings) == BrokerSettings()


def test_the_client_finds_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLSTICE_URL", "https://ci.example/")
    assert load_settings(ClientSettings).solstice_url == "https://ci.example"
    monkeypatch.setenv("SOLSTICE_URL", "ci.example")
    with pytest.raises(ConfigurationError, match="SOLSTICE_URL: must start with http"):
        load_settings(ClientSettings)


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"SOLSTICE_HOME": "/srv/ci", "XDG_STATE_HOME": "/state"}, Path("/srv/ci")),
        ({"XDG_STATE_HOME": "/state"}, Path("/state/solstice-ci")),
        ({"HOME": "/home/heron"}, Path("/home/heron/.local/state/solstice-ci")),
        ({"HOME": "/home/heron", "SOLSTICE_HOME": "", "XDG_STATE_HOME": ""}, Path("/home/heron/.local/state/solstice-ci")),
    ],
    ids=["SOLSTICE_HOME", "XDG_STATE_HOME", "home", "empty is unset"],
)  # fmt: skip
def test_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], directory: Path
) -> None:
    for name in ("SOLSTICE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_directory() == directory


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db.example:5433/jobs?ssl=require", "postgresql://ada@db.example:5433/jobs"),
        ("postgresql://ada:se@cret@db.example/jobs", "postgresql://ada@db.example/jobs"),
        ("postgresql:///jobs?host=/run/postgresql&password=secret", "postgresql:///jobs"),
        ("sqlite:////var/lib/solstice/jobs.db", "sqlite:////var/lib/solstice/jobs.db"),
        ("sqlite:///state/jobs.db", "sqlite:///state/jobs.db"),
        ("db.example:5433?password=secret", "db.example:5433"),
        ("ada:secret@db.example", "..."),
    ],
    ids=["password", "odd-password", "in-options", "absolute-file", "file", "a-host", "no-scheme"],
)
def test_a_database_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_the_file_of_the_password_goes_into_the_url(tmp_path: Path) -> None:
    file = tmp_path / "pass word"
    settings = BrokerSettings(amqp_url="redis://u@h/0?prefix=ci:", amqp_password_file=str(file))
    assert settings.amqp_url == f"redis://u@h/0?prefix=ci:&password_file={quote(str(file))}"
    assert BrokerSettings(**settings.model_dump()).amqp_url == settings.amqp_url
    with pytest.raises(ValueError, match="another one: name the file once"):
        BrokerSettings(amqp_url=settings.amqp_url, amqp_password_file="/another")


def test_several_hosts_are_shown_without_password() -> None:
    assert without_password("amqp://u:planted@a:1,b:2/%2f?x=1") == "amqp://u@a:1,b:2/%2f"
    assert without_password("amqp://u:pl/anted@a:1,b:2/%2f") == "amqp://..."


@pytest.mark.parametrize(
    "token", ["planted ", "planted\n", "plan\nted", "planté-d", "planted\udce9"], ids=ascii
)
def test_token_that_fits_no_header_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigurationError, match="SOLSTICE_TOKEN: must be as") as raised:
        load_settings(ClientSettings, solstice_token=token)
    assert "plan" not in str(raised.value)


@pytest.mark.parametrize("url", ["mysql://host/x?password=planted", "sqlite://joe:planted@host/x"])
def test_url_of_another_database_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write sqlite:///FILE") as raised:
        sqlite_path(url)
    assert "planted" not in str(raised.value)
