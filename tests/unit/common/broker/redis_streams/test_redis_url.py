"""URLs of Redis: their options, and errors without their secrets."""

from pathlib import Path

import pytest

from solstice_common.addresses.hosts import Host
from solstice_common.addresses.tls import TlsFiles
from solstice_common.broker.redis_streams.redis_url import redis_address
from solstice_common.errors import ConfigurationError


def test_a_plain_url_is_the_local_server_without_password() -> None:
    address = redis_address("redis://127.0.0.1")
    assert (address.hosts, address.database, address.tls) == ((Host("127.0.0.1", 6379),), 0, None)
    assert (address.username, address.password) == (None, None)
    assert (address.prefix, address.lease_seconds) == ("", 30.0)


def test_the_shortest_lease_is_a_second() -> None:
    assert redis_address("redis://h?lease=1").lease_seconds == 1.0


def test_everything_that_a_url_may_say_is_read_and_no_secret_is_shown() -> None:
    address = redis_address(
        "rediss://ci:se%23same@redis.example:7000/3?prefix=ci:&lease=10&cafile=/ca.pem&certfile=/c.pem&keyfile=/k.pem"
    )
    (host,) = address.hosts
    arguments = address.arguments(host)
    assert arguments["password"] == "se#same"
    assert arguments["username"] == "ci"
    assert (arguments["host"], arguments["port"], arguments["db"]) == ("redis.example", 7000, 3)
    assert address.tls == TlsFiles(cafile="/ca.pem", certfile="/c.pem", keyfile="/k.pem")
    assert (address.prefix, address.lease_seconds) == ("ci:", 10.0)
    assert address.shown == "rediss://ci@redis.example:7000/3"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://", "must look like redis://"),
        ("redis://[::1", "cannot be taken apart"),
        ("redis://h/solstice", "'/solstice' is no database of Redis"),
        ("redis://h/0?timeout=5", "unknown option 'timeout'; Redis takes cafile, certfile"),
        ("redis://h?cafile=/ca&server_name=n", "cafile, server_name: such options need TLS: write rediss://"),
        ("redis://h?lease=0", "lease=0: write the seconds"),
        ("redis://h?lease=inf", "lease=inf: write the seconds"),
        ("redis://h?lease=nan", "lease=nan: write the seconds"),
        ("redis://h?lease=soon", "lease=soon: write the seconds"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        redis_address(url)
    assert str(raised.value).startswith("AMQP_URL: ")
    assert advice in str(raised.value)


def test_a_password_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as raised:
        redis_address("redis://ci:sesame@[::1/0")
    assert "sesame" not in str(raised.value)


def test_several_hosts_share_what_the_url_says() -> None:
    address = redis_address("redis://ci:sesame@one,two:7000,[::1]:7001/2")
    assert address.hosts == (Host("one", 6379), Host("two", 7000), Host("::1", 7001))
    assert [address.arguments(host)["port"] for host in address.hosts] == [6379, 7000, 7001]
    assert {address.arguments(host)["db"] for host in address.hosts} == {2}
    assert address.shown == "redis://ci@one:6379,two:7000,[::1]:7001/2"


def test_tls_is_what_the_scheme_says() -> None:
    assert redis_address("redis://h?cafile=").tls is None
    assert redis_address("rediss://h").tls == TlsFiles()


def test_a_password_in_a_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    address = redis_address(f"redis://ci@h?password_file={file}")
    address.check()
    assert (address.password, address.password_file) == (None, str(file))
    assert address.arguments(address.hosts[0])["password"] == "first"
    file.write_text("second\n")
    assert address.arguments(address.hosts[0])["password"] == "second"
    assert address.arguments(address.hosts[0])["username"] == "ci"
    file.unlink()
    with pytest.raises(ConfigurationError, match="AMQP_PASSWORD_FILE"):
        address.check()


def test_a_certificate_that_cannot_be_read_is_found_by_the_check() -> None:
    redis_address("redis://h").check()
    with pytest.raises(ConfigurationError, match=r"cafile /nowhere/ca\.pem cannot be used"):
        redis_address("rediss://h?cafile=/nowhere/ca.pem").check()


@pytest.mark.parametrize("path", ["", "/", "/0", "/0/"])
def test_without_a_number_it_is_the_first_database(path: str) -> None:
    assert redis_address(f"redis://h{path}").database == 0


@pytest.mark.parametrize("url", ["nats://h", "http://h/0", "h:6379"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AMQP_URL: must look like redis://"):
        redis_address(url)
