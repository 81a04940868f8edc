"""What a URL says of TLS, and what a failed connection advises."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from solstice_common.addresses.tls import TlsFiles, check_tls_scheme, explained, tls_files, with_remedy
from solstice_common.errors import ConfigurationError


def test_options_of_tls_are_read_and_others_are_left() -> None:
    options = {
        "cafile": "/ca.pem",
        "certfile": "/c.pem",
        "keyfile": "/k.pem",
        "server_name": "n",
        "lease": "3",
    }
    assert tls_files(options) == TlsFiles(
        cafile="/ca.pem", certfile="/c.pem", keyfile="/k.pem", server_name="n"
    )


def test_an_empty_option_counts_as_absent() -> None:
    assert tls_files({"cafile": "", "server_name": ""}) == TlsFiles()


def test_a_key_needs_its_certificate() -> None:
    assert tls_files({"certfile": "/both.pem"}) == TlsFiles(certfile="/both.pem")
    with pytest.raises(ConfigurationError, match="AMQP_URL: a keyfile needs a certfile"):
        tls_files({"keyfile": "/k.pem"})


def test_options_of_tls_in_a_url_without_it_are_named_with_the_scheme_to_write() -> None:
    check_tls_scheme({"cafile": "", "lease": "3"}, "b")
    with pytest.raises(
        ConfigurationError, match=r"^AMQP_URL: cafile, keyfile: such options need TLS: write b://$"
    ):
        check_tls_scheme({"keyfile": "/k", "lease": "3", "cafile": "/ca"}, "b")
    with pytest.raises(ConfigurationError, match="lease: such"):
        check_tls_scheme({"lease": "3"}, "b", {"lease"})


def test_a_context_verifies_names_and_refuses_old_protocols() -> None:
    for files in (TlsFiles(), TlsFiles(server_name="broker")):
        context = files.context()
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_name_replaces_that_of_the_host() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = TlsFiles(server_name="broker").context().wrap_bio(incoming, outgoing, server_hostname="host")
    assert wrapped.server_hostname == "broker"


@pytest.mark.parametrize(
    ("files", "option", "path"),
    [
        (TlsFiles(cafile="/nowhere/ca.pem"), "cafile", "/nowhere/ca.pem"),
        (TlsFiles(certfile="/nowhere/c.pem"), "certfile", "/nowhere/c.pem"),
        (TlsFiles(certfile=__file__, keyfile="/nowhere/k.pem"), "keyfile", "/nowhere/k.pem"),
        (TlsFiles(certfile=__file__, keyfile=__file__), "certfile", __file__),
    ],
)
def test_the_file_that_cannot_be_used_is_named(files: TlsFiles, option: str, path: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        files.context()
    assert str(raised.value).startswith(f"AMQP_URL: {option} {path} cannot be used (")
    assert ("(No such file or directory)" in str(raised.value)) is path.startswith("/nowhere/")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    """A certificate without its key, and the key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2026, 3, 1, tzinfo=UTC))
        .not_valid_after(datetime(2056, 3, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "c.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path, key


def in_pem(key: ec.EllipticCurvePrivateKey, encrypted: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)


OPEN = serialization.NoEncryption()


def test_what_is_wrong_with_our_certificate_or_key_is_named(
    pair: tuple[Path, ec.EllipticCurvePrivateKey], tmp_path: Path
) -> None:
    certificate, key = pair
    keyfile, other, locked = (tmp_path / name for name in ("k.pem", "other.pem", "locked.pem"))
    keyfile.write_bytes(in_pem(key, OPEN))
    other.write_bytes(in_pem(ec.generate_private_key(ec.SECP256R1()), OPEN))
    locked.write_bytes(in_pem(key, serialization.BestAvailableEncryption(b"otter")))
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + keyfile.read_bytes())
    TlsFiles(certfile=str(certificate), keyfile=str(keyfile)).context()
    TlsFiles(certfile=str(both)).context()
    for certfile, key_or_none, message in (
        (
            certificate,
            None,
            f"certfile {certificate} cannot be used (it holds no private key): name the key of",
        ),
        (
            certificate,
            certificate,
            f"keyfile {certificate} cannot be used (it holds no private key): name the",
        ),
        (
            keyfile,
            keyfile,
            f"certfile {keyfile} cannot be used (it holds no certificate): name a file in PEM",
        ),
        (
            certificate,
            other,
            f"keyfile {other} cannot be used (its key is not that of {certificate}): name the",
        ),
        (
            certificate,
            locked,
            f"keyfile {locked} cannot be used (its key is encrypted): name a key without a",
        ),
        (certificate, tmp_path, f"keyfile {tmp_path} cannot be used (Is a directory): name a file in PEM"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            TlsFiles(
                certfile=str(certfile), keyfile=None if key_or_none is None else str(key_or_none)
            ).context()
        assert str(raised.value).startswith(f"AMQP_URL: {message}")


@pytest.mark.parametrize(
    "text", ["Connection reset by peer", "EOF occurred", "the transport was closed", "Broken pipe"]
)
def test_a_server_that_hung_up_may_have_meant_our_certificate(text: str) -> None:
    assert explained(text, None) == text
    assert explained(text, None, tls_scheme="b://").startswith(f"{text}; if the server speaks TLS at that")
    assert explained(text, TlsFiles()).startswith(f"{text}; if the server demands a client certificate")
    assert explained(text, TlsFiles(certfile="/c.pem")).startswith(f"{text}; if the server refused our")


def test_another_failure_is_not_explained_by_certificates() -> None:
    assert explained("Connection refused", TlsFiles()) == "Connection refused"
    assert explained("Connection refused", None, tls_scheme="b://") == "Connection refused"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("certificate verify failed: certificate has expired", "renew the certificate of the server"),
        ("CERTIFICATE_VERIFY_FAILED: self-signed", "name the authority that signed"),
        ("certificate verify failed: Hostname mismatch", "give that name as server_name"),
        ("IP address mismatch, certificate is not valid for it", "give that name as server_name"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]", "the server demands a client certificate"),
        ("[SSL: WRONG_VERSION_NUMBER].", "name its port for TLS"),
        ("tlsv1 alert unknown ca", "have our certificate (certfile) signed"),
        ("Expected Connection.Start, got <Heartbeat>", "write amqps://"),
    ],
)
def test_a_failure_of_tls_comes_with_what_to_do(text: str, remedy: str) -> None:
    advised = with_remedy(text)
    assert advised.startswith(f"{text.rstrip('.')}; ")
    assert remedy in advised


def test_a_failure_without_tls_stays_as_it_is() -> None:
    assert with_remedy("Connection refused.") == "Connection refused."
