"""Reads the URL of a Redis server, with our own options."""

from typing import Any, Final

from solstice_common.addresses.broker_urls import check_options, parsed_url, shown_url
from solstice_common.addresses.hosts import Host, read_hosts
from solstice_common.addresses.password_file import check_password_file, read_password
from solstice_common.addresses.tls import TLS_OPTIONS, TlsFiles, check_tls_scheme, tls_files
from solstice_common.errors import ConfigurationError
from solstice_common.values.value import Value

LEASE_SECONDS: Final = 30.0
LEAST_LEASE_SECONDS: Final = 1.0
DEFAULT_PORT: Final = 6379
_FORM: Final = "must look like redis://user:password@host:6379/0, with further hosts between commas"
_OPTIONS: Final = frozenset({"prefix", "lease", "password_file", *TLS_OPTIONS})


class RedisAddress(Value, frozen=True, kw_only=True):
    """The servers and the login of Redis; each connection reads the files again."""

    hosts: tuple[Host, ...]
    username: str | None
    password: str | None
    password_file: str | None = None
    database: int
    tls: TlsFiles | None = None
    """How to verify the server; None without TLS."""
    shown: str
    """The URL without password and options."""
    prefix: str = ""
    """The prefix of every key, by which several installations can share one database."""
    lease_seconds: float = LEASE_SECONDS
    """How long a silent consumer keeps its entries."""

    def check(self) -> None:
        """Raise ConfigurationError that names a file which cannot be used."""
        check_password_file(self.password_file)
        if self.tls is not None:
            self.tls.context()

    def arguments(self, host: Host) -> dict[str, Any]:
        """Return what redis-py needs for a connection to one of the hosts.

        ConfigurationError when the file of the password cannot be used.
        """
        password = self.password if self.password_file is None else read_password(self.password_file)
        return {
            "host": host.name,
            "port": host.port,
            "username": self.username,
            "password": password,
            "db": self.database,
        }


def redis_address(url: str) -> RedisAddress:
    """Return the server that `url` names: `redis://USER:PASSWORD@HOST:PORT/DATABASE?prefix=P&lease=SECONDS`.

    `rediss://` is TLS, with the options of `tls_files`. Raises ConfigurationError.
    """
    address = parsed_url(url, schemes=("redis", "rediss"), form=_FORM)
    number = address.path.strip("/") or "0"
    if not number.isdecimal():
        raise ConfigurationError(
            f"AMQP_URL: {address.path!r} is no database of Redis; write its number, as /0"
        )
    check_options(address.query, _OPTIONS, "Redis")
    if address.scheme == "redis":
        check_tls_scheme(address.query, "rediss")
    hosts = read_hosts(url, default_port=DEFAULT_PORT, form=_FORM)
    return RedisAddress(
        hosts=hosts,
        username=address.user or None,
        password=address.password or None,
        database=int(number),
        tls=tls_files(address.query) if address.scheme == "rediss" else None,
        shown=shown_url(address, hosts),
        prefix=address.query.get("prefix", ""),
        lease_seconds=_seconds(address.query.get("lease", str(LEASE_SECONDS))),
        password_file=address.query.get("password_file"),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_LEASE_SECONDS <= seconds < float("inf"):
        raise ConfigurationError(
            f"AMQP_URL: lease={text}: write the seconds of a consumer's lease, at least {LEAST_LEASE_SECONDS:g}"
        )
    return seconds
