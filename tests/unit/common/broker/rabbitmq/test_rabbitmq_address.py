"""What the URL of RabbitMQ says: hosts, login, certificates, and where the password stands."""

import inspect
import re
from pathlib import Path

import aiormq.connection
import pytest

from solstice_common.addresses.hosts import Host
from solstice_common.broker.rabbitmq.rabbitmq_address import _OPTIONS, rabbitmq_address
from solstice_common.errors import ConfigurationError


def test_each_host_has_a_url_of_its_own_with_the_same_login() -> None:
    address = rabbitmq_address("amqp://ada:otter@one,two:7/virtual?heartbeat=5")
    assert address.hosts == (Host(name="one", port=5672), Host(name="two", port=7))
    assert [str(address.at(host)) for host in address.hosts] == [
        "amqp://ada:otter@one:5672/virtual?heartbeat=5",
        "amqp://ada:otter@two:7/virtual?heartbeat=5",
    ]
    assert address.shown == "amqp://ada@one:5672,two:7/virtual"


def test_login_is_that_of_a_guest_unless_told() -> None:
    assert rabbitmq_address("amqp://one").credentials() == ("guest", "guest")
    assert rabbitmq_address("amqp://ada@one").credentials() == ("ada", "guest")


def test_password_in_a_file_is_read_at_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("maple\n")
    file.chmod(0o600)
    address = rabbitmq_address(f"amqp://ada:otter@one?password_file={file}")
    address.check()
    assert address.credentials() == ("ada", "maple")
    file.write_text("lantern\n")
    assert address.at(address.hosts[0]).password == "lantern"
    file.unlink()
    with pytest.raises(ConfigurationError, match=str(file)):
        address.check()


@pytest.mark.parametrize(
    ("url", "reads_certificates"),
    [
        ("amqp://one?cafile=", False),
        ("amqps://one?cafile=/ca", True),
        ("amqps://one", True),
        ("amqps://one?cafile=/ca&no_verify_ssl=1", False),
    ],
)
def test_certificates_are_read_by_us_unless_an_option_of_the_client_says_otherwise(
    url: str, reads_certificates: bool
) -> None:
    address = rabbitmq_address(url)
    assert (address.tls is not None) is reads_certificates
    assert address.hosts[0].port == (5671 if url.startswith("amqps") else 5672)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path / "ca")):
        rabbitmq_address(f"amqps://one?cafile={tmp_path / 'ca'}").check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("heartbeet=5", "unknown option 'heartbeet'; RabbitMQ takes auth, cadata, cafile,"),
        ("cafile=/ca&server-name=x", "unknown option 'server-name'"),
        ("heartbeat=often", "the option heartbeat must be whole seconds, at most 65534"),
        ("heartbeat=1.5", "the option heartbeat must be"),
        ("heartbeat=70000", "the option heartbeat must be"),
        ("timeout=-1", "the option timeout must be whole seconds"),
        ("auth=kerberos", "the option auth must be one of plain, external"),
        ("cafile=/ca&keyfile=/k", "AMQP_URL: cafile, keyfile: such options need TLS: write amqps://"),
        ("no_verify_ssl=1", "AMQP_URL: no_verify_ssl: such options need TLS: write amqps://"),
    ],
)
def test_an_option_that_the_client_would_ignore_is_named(options: str, words: str) -> None:
    """aiormq took a heartbeat that is no number for none at all."""
    with pytest.raises(ConfigurationError, match=re.escape(words)) as raised:
        rabbitmq_address(f"amqp://ada:otter@one/?{options}")
    assert "otter" not in str(raised.value)


def test_the_options_of_the_client_are_all_it_reads() -> None:
    read = set(re.findall(r"query\.get\(\s*\"(\w+)\"", inspect.getsource(aiormq.connection)))
    assert len(read) > 5
    assert read <= _OPTIONS
    for option in read - {"auth"}:
        rabbitmq_address(f"amqps://one/?certfile=/c&{option}=1")
