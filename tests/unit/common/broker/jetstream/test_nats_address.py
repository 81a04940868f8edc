"""URLs of NATS: their options, and errors without their secrets."""

from pathlib import Path

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
    assert not address.handshake_first
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


def test_a_password_in_a_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    address = read_address(f"nats://ci@host?password_file={file}")
    address.check()
    assert (address.user, address.password, address.token) == ("ci", None, None)
    assert address.shown == "nats://ci@host:4222"
    assert address.password_now() == "first"
    file.write_text("second\n")
    assert address.password_now() == "second"
    file.unlink()
    with pytest.raises(ConfigurationError, match="AMQP_PASSWORD_FILE"):
        address.check()


def test_a_password_in_a_file_needs_a_user() -> None:
    with pytest.raises(ConfigurationError, match="a password_file needs a user"):
        read_address("nats://host?password_file=/file")


def test_without_credentials_nothing_is_presented() -> None:
    address = read_address("nats://host")
    assert (address.user, address.password, address.token) == (None, None, None)
    assert address.password_now() is None
    assert (address.tls_only, address.replicas, address.tls) == (False, 1, TlsFiles())
    assert address.shown == "nats://host:4222"
    address.check()


def test_a_user_with_an_empty_password_is_a_user() -> None:
    address = read_address("nats://ci:@host")
    assert (address.user, address.password, address.token) == ("ci", "", None)
    assert address.password_now() == ""


@pytest.mark.parametrize("option", ["cafile", "certfile"])
def test_files_of_tls_are_verified_with(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} /nowhere cannot be used"):
        read_address(f"tls://host?{option}=/nowhere").check()


@pytest.mark.parametrize("option", ["cafile", "certfile", "keyfile", "server_name", "handshake_first"])
def test_options_of_tls_need_the_scheme_that_insists_on_it(option: str) -> None:
    """With `nats://` a server without TLS would get the password in the clear."""
    with pytest.raises(
        ConfigurationError, match=f"^AMQP_URL: {option}: such options need TLS: write tls://$"
    ):
        read_address(f"nats://user:planted@host?{option}=true")


def test_the_handshake_is_first_where_the_url_says_so() -> None:
    first = read_address("tls://host?handshake_first=true")
    assert first.handshake_first
    assert first.remedy_of_silence.endswith("has no handshake_first: leave it out")
    second = read_address("tls://host?handshake_first=false")
    assert not second.handshake_first
    assert second.remedy_of_silence.endswith("has handshake_first: write handshake_first=true")
    for neither in ("", "yes", "True"):
        with pytest.raises(ConfigurationError, match=r"^AMQP_URL: handshake_first must be true or false$"):
            read_address(f"tls://host?handshake_first={neither}")


@pytest.mark.parametrize("replicas", ["0", "6", "", "-1"])
def test_copies_beyond_what_a_cluster_can_have_are_refused(replicas: str) -> None:
    with pytest.raises(ConfigurationError, match="replicas must be 1 to 5"):
        read_address(f"nats://host?replicas={replicas}")


def test_an_unknown_option_is_named_beside_those_there_are() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_address("nats://host?zeta=1&alpha=2")
    assert str(raised.value) == (
        "AMQP_URL: unknown option 'alpha', 'zeta'; "
        "NATS takes cafile, certfile, handshake_first, keyfile, password_file, replicas, server_name"
    )
