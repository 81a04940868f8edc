"""Verifies servers and sends them our certificate, in the same way for every broker."""

import ssl
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Self

from solstice_common.addresses.system_errors import system_words
from solstice_common.errors import ConfigurationError
from solstice_common.values.value import Value

TLS_OPTIONS: Final = ("cafile", "certfile", "keyfile", "server_name")
"""The options that the URL of every broker may have after its `?`."""
_REMEDIES: Final[Mapping[str, str]] = {
    "certificate has expired": "renew the certificate of the server",
    "certificate is not yet valid": "look at the clocks of both machines",
    "hostname mismatch": "name the server as its certificate does, or give that name as server_name",
    "ip address mismatch": "name the server as its certificate does, or give that name as server_name",
    "certificate_verify_failed": "name the authority that signed the server's certificate as cafile",
    "alert certificate required": "the server demands a client certificate: name it as certfile, and its key as keyfile",
    "alert handshake failure": "the server may demand a client certificate: name it as certfile, and its key as keyfile",
    "alert bad certificate": "the server does not accept this client certificate: name the right one as certfile, and its key as keyfile",
    "alert certificate expired": "renew our certificate (certfile)",
    "alert unknown ca": "have our certificate (certfile) signed by an authority that the server knows",
    "alert certificate unknown": "have our certificate (certfile) signed by an authority that the server knows",
    "wrong_version_number": "the server speaks no TLS at that port: name its port for TLS",
    "record layer failure": "the server speaks no TLS at that port: name its port for TLS",
    "expected connection.start": "the server may speak TLS at that port: write amqps://, or name its port without TLS",
}
"""What to do about an error of OpenSSL; the first text that the error contains counts."""
_HUNG_UP: Final = (
    "connection reset",
    "connection lost",
    "connection closed",
    "was closed",
    "eof",
    "broken pipe",
)


class TlsFiles(Value, frozen=True, kw_only=True):
    """The files that verify a server, and the certificate that we send it."""

    cafile: str | None = None
    """The authorities that may sign; the system's without one."""
    certfile: str | None = None
    """Our certificate, with its key unless that is in `keyfile`."""
    keyfile: str | None = None
    server_name: str | None = None
    """The name that the server's certificate must have; the host's without one."""

    def context(self) -> ssl.SSLContext:
        """Verify with the files as they are now.

        ConfigurationError names the file that cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.server_name is not None:
                context = _NamingContext.like(context, self.cafile, self.server_name)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("cafile", self.cafile, error) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certfile is not None:
            try:
                context.load_cert_chain(self.certfile, self.keyfile, password=_no_passphrase)
            except (OSError, ssl.SSLError, _KeyEncrypted) as error:
                raise _unusable_pair(self.certfile, self.keyfile, error) from None
        return context


def check_tls_scheme(options: Mapping[str, str], scheme: str, names: Collection[str] = TLS_OPTIONS) -> None:
    """Raise ConfigurationError for options of TLS, which count only with another scheme. Pure.

    `names` are such options, and `scheme` is the one to write.
    """
    given = sorted(name for name in names if options.get(name))
    if given:
        raise ConfigurationError(f"AMQP_URL: {', '.join(given)}: such options need TLS: write {scheme}://")


def tls_files(options: Mapping[str, str]) -> TlsFiles:
    """Return the TLS files that the options of a URL name.

    ConfigurationError for a key without its certificate.
    """
    if "keyfile" in options and "certfile" not in options:
        raise ConfigurationError("AMQP_URL: a keyfile needs a certfile beside it")
    return TlsFiles(**{name: value for name in TLS_OPTIONS if (value := options.get(name))})


def explained(text: str, tls: TlsFiles | None, *, tls_scheme: str = "") -> str:
    """Explains a failed login that TLS or our certificate may have caused. Pure.

    TLS 1.3 refuses a client after its handshake; the reason is often lost with the connection. `tls_scheme` is that of
    a broker whose port for TLS hangs up on a client without it.
    """
    if not any(words in text.casefold() for words in _HUNG_UP):
        return text
    if tls is None:
        remedy = f"; if the server speaks TLS at that port: write {tls_scheme}, or name its port without TLS"
        return text + remedy if tls_scheme else text
    if tls.certfile is None:
        return (
            f"{text}; if the server demands a client certificate: name it as certfile, and its key as keyfile"
        )
    return f"{text}; if the server refused our certificate: have our certificate (certfile) signed by an authority that it knows"


def with_remedy(text: str) -> str:
    """Return the reason of a failed connection in plain words, with a remedy for TLS. Pure."""
    text = system_words(text)
    plain = text.casefold().replace("_", " ")
    for words, remedy in _REMEDIES.items():
        if words.replace("_", " ") in plain:
            return f"{text.rstrip('.')}; {remedy}"
    return text


class _NamingContext(ssl.SSLContext):
    """A TLS context that expects one name in the certificate, for every host.

    Some client libraries have no option for it.
    """

    _name = ""

    @classmethod
    def like(cls, context: ssl.SSLContext, cafile: str | None, name: str) -> Self:
        named = cls(ssl.PROTOCOL_TLS_CLIENT)
        named._name = name
        named.verify_flags = context.verify_flags
        if cafile is None:
            named.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            named.load_verify_locations(cafile)
        return named

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002  as in Python
        server_hostname: str | bytes | None = None,  # noqa: ARG002  the one that is replaced
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self._name, session)


class _KeyEncrypted(Exception):
    """A passphrase is needed."""


def _no_passphrase() -> str:
    """Replace OpenSSL's question on the terminal, for which a service would wait forever."""
    raise _KeyEncrypted


def _unusable_pair(certfile: str, keyfile: str | None, error: Exception) -> ConfigurationError:
    """Name the wrong one of both files, and how it is wrong.

    OpenSSL says `PEM lib` in most cases.
    """
    certificate = ("certfile", certfile)
    key = certificate if keyfile is None else ("keyfile", keyfile)
    contents: dict[str, bytes] = {}
    for option, path in (certificate, key):
        try:
            contents[path] = Path(path).read_bytes()
        except OSError as unreadable:
            return _unusable(option, path, unreadable)
    if b"CERTIFICATE-----" not in contents[certfile]:
        return _unusable(*certificate, "it holds no certificate")
    remedy = "name the key of the certificate as keyfile"
    if isinstance(error, _KeyEncrypted):
        return _unusable(*key, "its key is encrypted", "name a key without a passphrase as keyfile")
    if b"PRIVATE KEY-----" not in contents[key[1]]:
        return _unusable(*key, "it holds no private key", remedy)
    if "KEY_VALUES_MISMATCH" in str(error):
        return _unusable(*key, f"its key is not that of {certfile}", remedy)
    return _unusable(*certificate, error)


def _unusable(
    option: str,
    path: str | None,
    why: Exception | str,
    remedy: str = "name a file in PEM that can be read here",
) -> ConfigurationError:
    words = (why.strerror or why) if isinstance(why, OSError) else why
    return ConfigurationError(f"AMQP_URL: {option} {path} cannot be used ({words}): {remedy}")
