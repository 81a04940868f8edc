"""What a URL of NATS may say, and what is never repeated of it."""

import pytest

from solstice_common.addresses.hosts import Host
from solstice_common.addresses.tls import TlsFiles
from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.errors import ConfigurationError


def test_hosts_credentials_and_options_are_read() -> None:
    address = read_address(
        "tls://ot%40ter:s%2Fcret@one.example,two.example:4333/?server_name=nats&replicas=3"
    )
    assert address.hosts == (Host("one.example", 4222), Host("two.example", 4333))
    assert (address.user, address.password, address.token) == ("ot@ter", "s/cret", None)
    assert (address.tls_only, address.tls.server_name, address.replicas) == (True, "nats", 3)
    assert address.shown == "tls://ot%40ter@one.example:4222,two.example:4333"


def test_files_of_certificates_are_read() -> None:
    address = read_address("tls://host?cafile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&replicas=5")
    assert address.tls == TlsFiles(cafile="/ca.pem", certfile="/c.pem", keyfile="/k.pem")
    assert address.replicas == 5


def test_url_that_cannot_be_taken_apart_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match="must look like nats://user:password@host:4222"):
        read_address("http://host")


def test_what_stands_alone_before_the_host_is_a_token_and_is_not_shown() -> None:
    address = read_address("nats://s3cret@[::1]:4222")
    assert (address.user, address.password, address.token) == (None, None, "s3cret")
    assert address.shown == "nats://[::1]:4222"


@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats://user:planted@",
        "nats://user:planted@host:0",
        "nats://user:planted@host:port",
        "nats://user:plan/ted@host",
        "nats://user:planted@host/stream",
        "nats://user:planted@host?cafil=x",
        "nats://user:planted@host?cafil=",
        "nats://user:planted@host?keyfile=x",
        "nats://user:planted@host?replicas=many",
        "nats://user:plan#ted@host",
        "nats://user:planted@[::1",
    ],
)
def test_url_that_cannot_be_used_is_an_error_that_does_not_repeat_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AMQP_URL") as raised:
        read_address(url)
    assert "plan" not in str(raised.value)


def test_certificate_that_cannot_be_read_is_named() -> None:
    address = read_address("tls://host?cafile=/nowhere/ca.pem")
    with pytest.raises(ConfigurationError, match=r"/nowhere/ca\.pem"):
        address.tls_context()


def test_without_tls_in_the_url_there_is_nothing_to_verify_with() -> None:
    assert read_address("nats://host").tls_context() is None
    assert read_address("tls://host").tls_context() is not None
