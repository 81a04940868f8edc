"""Which addresses `solstice up` writes down for other commands."""

from pathlib import Path

import pytest

from solstice_common.cli.running_up import RunningUp, reachable, shareable
from solstice_common.errors import ConfigurationError


@pytest.mark.parametrize(
    "url",
    ["amqp://127.0.0.1:5672/%2f", "amqps://anna@rabbit.example/x", "postgresql://anna@db.example/solstice"],
)
def test_a_url_without_a_password_is_written_as_it_is(url: str) -> None:
    assert shareable(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "amqp://guest:guest@127.0.0.1:5672/%2f",
        "postgresql://db.example/solstice?password=s",
        "postgresql://db.example/solstice?sslkey=/k&sslpassword=s",
        "amqp://a:[b@rabbit.example/",
        "postgresql://a:b#c@db.example/solstice",
        "postgresql://a:b/c@db.example/solstice",
    ],
)
def test_a_url_with_a_password_is_not_written(url: str) -> None:
    assert shareable(url) is None


def test_a_relative_file_is_the_same_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shareable("sqlite:///state/broker.db") == f"sqlite:///{tmp_path}/state/broker.db"


def test_a_wildcard_address_is_asked_by_loopback() -> None:
    assert reachable("http://0.0.0.0:8081") == "http://127.0.0.1:8081"
    assert reachable("http://[::]:8081") == "http://[::1]:8081"
    assert reachable("http://127.0.0.1:8081") == "http://127.0.0.1:8081"


def test_what_is_not_written_is_asked_for_by_name() -> None:
    up = RunningUp(pid=7, page="http://p", webhooks="http://w", broker=None, inbox="sqlite:///i", store=None)
    assert up.setting("forge_inbox_url") == "sqlite:///i"
    with pytest.raises(ConfigurationError, match="AMQP_URL: 'solstice up'"):
        up.setting("amqp_url")


@pytest.mark.parametrize(
    ("name", "flag"), [("amqp_url", "--broker"), ("forge_inbox_url", "--inbox"), ("database_url", "--store")]
)
def test_what_is_in_the_memory_of_the_running_one_is_not_opened_here(name: str, flag: str) -> None:
    up = RunningUp(
        pid=7, page="http://p", webhooks="http://w", broker="memory:", inbox="memory:", store="memory:"
    )
    with pytest.raises(
        ConfigurationError, match=r"process 7\) has its .* memory.*webhook send.*http://p"
    ) as raised:
        up.setting(name)
    assert f"{name.upper()}: " in str(raised.value)
    assert f"without {flag} memory:" in str(raised.value)
