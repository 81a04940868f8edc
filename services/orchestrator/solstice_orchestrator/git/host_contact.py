"""Decide whether a git host gave no answer, from the events of git itself. Pure.

A committer chooses paths, redirects and messages, and so most failures; none of them may count against the host that
other repositories share. So only known signs of an absent answer do: no connection, no TLS, no address, a time limit,
and a status of 500 or more.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class GitEvent:
    """An error event of git: the format of its message, and the message."""

    format: str
    message: str = ""


SSH_FAILED: Final = "ssh ended with 255"
"""The event of our own ssh command when ssh itself failed (ssh(1), "EXIT STATUS")."""
_NO_ACCESS: Final = "unable to access '%s': %s"
_RPC_FAILED: Final = "RPC failed; "
_NO_CONNECTION: Final = ("unable to connect to %s", "unable to look up %s")
"""Formats of git's own connections (git://), at their beginning."""
_REMOTE_ERROR: Final = "remote error: "
_STATUS: Final = re.compile(r"The requested URL returned error: (\d{3})")
_RPC: Final = re.compile(r"RPC failed; (?:HTTP (\d{3}) )?(?:curl (\d+) )?")
_SERVER_ERROR: Final = 500
_CURL_TIMEOUT: Final = 28
_CURL_AWAY: Final = re.compile(
    r"Could(?: not|n't) resolve |Resolving timed out|Failed to connect to |Could(?: not|n't) connect to |"
    r"Connection refused|Connection timed out|Connection timeout|Connection time-out|Connection reset by peer|"
    r"(?:Recv|Send) failure|Empty reply from server|"
    r"(?:Operation|Connection|SSL connection) (?:too slow|timed out|timeout)|Proxy CONNECT aborted|CONNECT tunnel failed|"
    r"Received HTTP code \d{3} from proxy after CONNECT|Can't complete SOCKS|"
    r"(?:Open)?SSL|TLS|gnutls|GnuTLS|schannel|server certificate|error setting certificate"
)
"""Words of curl (strerror.c and its backends of TLS), at their beginning."""


def is_host_away(events: Iterable[GitEvent]) -> bool:
    """Whether git's events say that the host gave no answer, or that it failed itself."""
    events = list(events)
    if any(event.format.startswith(_REMOTE_ERROR) for event in events):
        return False
    return any(_is_of_host(event) for event in events)


def _is_of_host(event: GitEvent) -> bool:
    if event.format == SSH_FAILED or event.format.startswith(_NO_CONNECTION):
        return True
    if event.format == _NO_ACCESS:
        # The URL stands before, and may contain anything.
        return _is_away_for_curl(event.message.rpartition("': ")[2])
    if event.format.startswith(_RPC_FAILED) and (matched := _RPC.match(event.message)):
        status, code = (int(group or 0) for group in matched.groups())
        return status >= _SERVER_ERROR or code == _CURL_TIMEOUT
    return False


def _is_away_for_curl(words: str) -> bool:
    if status := _STATUS.match(words):
        return int(status[1]) >= _SERVER_ERROR
    return _CURL_AWAY.match(words) is not None
