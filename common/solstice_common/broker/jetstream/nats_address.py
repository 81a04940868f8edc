"""Reads the URL of a NATS server or cluster."""

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from solstice_common.addresses.broker_urls import ESCAPES, check_options
from solstice_common.addresses.hosts import Host, read_hosts
from solstice_common.addresses.password_file import check_password_file, read_password
from solstice_common.addresses.tls import TLS_OPTIONS, TlsFiles, check_tls_scheme, tls_files
from solstice_common.errors import ConfigurationError

DEFAULT_PORT: Final = 4222
_HANDSHAKE_FIRST: Final = "handshake_first"
"""As in the server's configuration: the server does not speak before the handshake."""
OPTIONS: Final = (*TLS_OPTIONS, _HANDSHAKE_FIRST, "password_file", "replicas")
INBOX: Final = "_INBOX"
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_FORM: Final = "must look like nats://user:password@host:4222 or tls://host,host2:4222"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAddress:
    """The addresses of the servers, and how to connect to them."""

    hosts: tuple[Host, ...]
    user: str | None
    password: str | None
    password_file: str | None
    token: str | None
    """The token, which stands alone before the `@`."""
    tls_only: bool
    """Whether a connection without TLS is refused, as `tls://` asks."""
    tls: TlsFiles
    handshake_first: bool
    """Whether TLS begins before the server has said anything, as some servers want it."""
    replicas: int
    """Servers of a cluster that keep each stream that we make."""
    shown: str
    """The URL without password, token and options, for messages and logs."""

    @property
    def inbox_prefix(self) -> str:
        """Where this user gets its answers: another user's rights need not include them."""
        own = self.user or ""
        return f"{INBOX}.{own}" if _WORD.fullmatch(own) else INBOX

    @property
    def remedy_of_silence(self) -> str:
        """What to write where a server says nothing.

        It and we may each wait for the other's part of TLS.
        """
        if self.handshake_first:
            return "if the server's configuration has no handshake_first: leave it out"
        what = "handshake_first=true" if self.tls_only else "tls:// and the option handshake_first=true"
        return f"if the server's configuration has handshake_first: write {what}"

    def check(self) -> None:
        """Raise ConfigurationError that names a file which cannot be used."""
        check_password_file(self.password_file)
        self.tls_context()

    def password_now(self) -> str | None:
        """Return the current password; ConfigurationError when its file cannot be used."""
        return self.password if self.password_file is None else read_password(self.password_file)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context that verifies servers; None where the URL does not insist on TLS.

        Raises ConfigurationError when a file cannot be used.
        """
        return self.tls.context() if self.tls_only else None


def read_address(url: str) -> NatsAddress:
    """The address that a `nats://` or `tls://` URL names; several hosts are separated by commas.

    Raises ConfigurationError, without repeating the URL: it may hold a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"AMQP_URL: {_FORM}") from None
    credentials, _, hosts_there = parts.netloc.rpartition("@")
    if (
        parts.scheme not in {"nats", "tls"}
        or not hosts_there
        or parts.path not in {"", "/"}
        or parts.fragment
    ):
        raise ConfigurationError(f"AMQP_URL: {_FORM}; {ESCAPES}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    check_options(options, OPTIONS, "NATS")
    if parts.scheme == "nats":
        # Such a connection has TLS only where the server demands it.
        check_tls_scheme(options, "tls", {*TLS_OPTIONS, _HANDSHAKE_FIRST})
    handshake_first = options.get(_HANDSHAKE_FIRST, "false")
    if handshake_first not in {"true", "false"}:
        raise ConfigurationError(f"AMQP_URL: {_HANDSHAKE_FIRST} must be true or false")
    replicas = options.get("replicas", "1")
    if replicas not in {"1", "2", "3", "4", "5"}:
        raise ConfigurationError("AMQP_URL: replicas must be 1 to 5, the most that JetStream allows")
    user, has_password, password = credentials.partition(":")
    hosts = read_hosts(url, default_port=DEFAULT_PORT, form=_FORM)
    password_file = options.get("password_file")
    # With a password file, the user stands alone before the `@`; without one, that would be a token.
    is_user = bool(has_password) or password_file is not None
    if password_file is not None and not user:
        raise ConfigurationError("AMQP_URL: a password_file needs a user: nats://user@host:4222")
    name = f"{user}@" if is_user and user else ""
    return NatsAddress(
        hosts=hosts,
        user=unquote(user) if is_user else None,
        password=unquote(password) if has_password else None,
        password_file=password_file,
        token=unquote(user) if user and not is_user else None,
        tls_only=parts.scheme == "tls",
        tls=tls_files(options),
        handshake_first=handshake_first == "true",
        replicas=int(replicas),
        shown=f"{parts.scheme}://{name}{','.join(map(str, hosts))}",
    )
