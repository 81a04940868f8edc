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
    ("url", "says"),
    [
        ("redis://", "must look like redis://"),
        ("redis://[::1", "cannot be taken apart"),
        ("redis://h/solstice", "'/solstice' is no database of Redis"),
        ("redis://h/0?timeout=5", "unknown option 'timeout'; Redis takes cafile, certfile"),
        ("redis://h?lease=0", "lease=0: write the seconds"),
        ("redis://h?lease=inf", "lease=inf: write the seconds"),
        ("redis://h?lease=nan", "lease=nan: write the seconds"),
        ("redis://h?lease=soon", "lease=soon: write the seconds"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        redis_address(url)
    assert str(raised.value).startswith("AMQP_URL: ")
    assert says in str(raised.value)


def test_a_password_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as raised:
        redis_address("redis://ci:sesame@[::1/0")
    assert "sesame" not in str(raised.value)
