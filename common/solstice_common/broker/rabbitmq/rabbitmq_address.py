"""Reads the URL of RabbitMQ: several hosts, certificates, and the file of a password."""

from collections.abc import Mapping
from typing import Final

from yarl import URL

from solstice_common.addresses.broker_urls import check_options, parsed_url, shown_url
from solstice_common.addresses.hosts import Host, read_hosts
from solstice_common.addresses.password_file import check_password_file, read_password
from solstice_common.addresses.tls import TLS_OPTIONS, TlsFiles, check_tls_scheme, tls_files
from solstice_common.errors import ConfigurationError

PORTS: Final[Mapping[str, int]] = {"amqp": 5672, "amqps": 5671}
_AIORMQ_ALONE: Final = frozenset({"capath", "cadata", "no_verify_ssl"})
"""Options with which aiormq makes its own TLS context."""
_SECONDS: Final[Mapping[str, int]] = {"heartbeat": 65_534, "timeout": 65_534}
"""Options in whole seconds, of which aiormq takes anything else for 0, and the most that each may be."""
_OPTIONS: Final = frozenset({*TLS_OPTIONS, "password_file", *_AIORMQ_ALONE, *_SECONDS, "auth", "name"})
"""Ours, and those that aiormq reads."""
_MECHANISMS: Final = ("plain", "external")
_FORM: Final = "must look like amqp://user:password@host:5672/%2f, with further hosts between commas"


class RabbitMQAddress:
    """The hosts and the login of RabbitMQ; each connection reads the files again."""

    def __init__(self, url: URL, hosts: tuple[Host, ...]) -> None:
        self._url = url
        self.hosts: Final = hosts
        has_own_tls = url.scheme == "amqps" and _AIORMQ_ALONE.isdisjoint(url.query)
        self.tls: Final[TlsFiles | None] = tls_files(url.query) if has_own_tls else None
        self.password_file: Final = url.query.get("password_file")
        self.shown: Final = shown_url(url, hosts)

    def check(self) -> None:
        """Raise ConfigurationError that names a file which cannot be used."""
        check_password_file(self.password_file)
        if self.tls is not None:
            self.tls.context()

    def credentials(self) -> tuple[str, str]:
        """Return the current user and password; ConfigurationError when the file cannot be used."""
        password = self._url.password if self.password_file is None else read_password(self.password_file)
        return self._url.user or "guest", password or "guest"

    def at(self, host: Host) -> URL:
        """The URL of one host; ConfigurationError when the file of the password cannot be used."""
        user, password = self.credentials()
        return self._url.with_host(host.name).with_port(host.port).with_user(user).with_password(password)


def rabbitmq_address(url: str) -> RabbitMQAddress:
    """Return the address that an `amqp://` or `amqps://` URL names; ConfigurationError never repeats it."""
    parsed = parsed_url(url, schemes=PORTS, form=_FORM)
    _check_options(parsed.query)
    if parsed.scheme == "amqp":
        check_tls_scheme(parsed.query, "amqps", {*TLS_OPTIONS, *_AIORMQ_ALONE})
    return RabbitMQAddress(parsed, read_hosts(url, default_port=PORTS[parsed.scheme], form=_FORM))


def _check_options(options: Mapping[str, str]) -> None:
    """Refuse an option that aiormq would ignore, or would take for another value."""
    check_options(options, _OPTIONS, "RabbitMQ")
    for name, most in _SECONDS.items():
        text = options.get(name, "0")
        if not (text.isascii() and text.isdecimal() and int(text) <= most):
            raise ConfigurationError(f"AMQP_URL: the option {name} must be whole seconds, at most {most}")
    if options.get("auth", "plain").lower() not in _MECHANISMS:
        raise ConfigurationError(f"AMQP_URL: the option auth must be one of {', '.join(_MECHANISMS)}")
