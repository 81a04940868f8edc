"""Takes the URL of a broker apart, and shows it without secrets. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from yarl import URL

from solstice_common.addresses.hosts import Host, first_host_only
from solstice_common.errors import ConfigurationError

ESCAPES: Final = "in user and password write # [ ] @ / ? and % as %23 %5B %5D %40 %2F %3F and %25"


def parsed_url(url: str, *, schemes: Collection[str], form: str) -> URL:
    """Return the URL with only the first of its hosts.

    ConfigurationError, which shows `form` and nothing of the URL: it may hold a password.
    """
    try:
        parsed = URL(first_host_only(url))
        _ = parsed.port
    except ValueError:
        # yarl's message may hold a part of the password.
        raise _not_taken_apart() from None
    if parsed.scheme not in schemes or not parsed.host:
        raise ConfigurationError(f"AMQP_URL: {form}")
    return parsed


def check_options(options: Mapping[str, str], known: Collection[str], broker: str) -> None:
    """Raise ConfigurationError that names unknown options, unless one may be a part of a password."""
    unknown = sorted(set(options) - set(known))
    if not unknown:
        return
    if any("@" in part for option in options.items() for part in option):
        # A `?` in the password began the options.
        raise _not_taken_apart()
    raise ConfigurationError(
        f"AMQP_URL: unknown option {', '.join(map(repr, unknown))}; {broker} takes {', '.join(sorted(known))}"
    )


def shown_url(parsed: URL, hosts: Sequence[Host]) -> str:
    """Return the URL for messages and logs: without password and options, which may name files."""
    user = f"{parsed.raw_user}@" if parsed.raw_user else ""
    return f"{parsed.scheme}://{user}{','.join(map(str, hosts))}{parsed.raw_path}"


def _not_taken_apart() -> ConfigurationError:
    return ConfigurationError(f"AMQP_URL: cannot be taken apart; {ESCAPES}")
