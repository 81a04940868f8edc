"""Finds out whether messages that JetStream confirms survive the loss of power.

An ordinary account cannot see the server's `sync_interval`; the monitoring port shows it. Its default is an fsync every
two minutes (github.com/nats-io/nats-server/issues/7564).
"""

from typing import Any, Final

import httpx2

from solstice_common.broker.capabilities import Certainty

ANSWER_SECONDS: Final = 5.0
LEAST_VERSION: Final = (2, 10)
_REMEDY: Final = "set sync_interval: always in the server's jetstream block"


class DurabilityProbe:
    """What is known of the server's durability; `probe` updates it."""

    def __init__(self, monitor_url: str, *, sync_always: bool) -> None:
        self._monitor_url = monitor_url
        self._sync_always = sync_always
        self._seen: bool | str = "it was not asked yet"
        """Whether the server syncs always, or why that is not known."""

    async def probe(self) -> None:
        """Ask the monitoring port, when there is one."""
        if self._monitor_url:
            self._seen = await _probe(self._monitor_url)

    def degraded(self, version: tuple[int, int]) -> str | None:
        """Return why the server is not durable, and what to change; None when it is."""
        if not self._monitor_url:
            return lacking(version, syncs_always=self._sync_always or None)
        if isinstance(self._seen, str):
            return f"durability unknown: NATS_MONITOR_URL does not say ({self._seen})"
        return lacking(version, syncs_always=self._seen)

    def certainty(self, version: tuple[int, int]) -> Certainty:
        """Whether the server is durable, as far as that can be known."""
        degraded = self.degraded(version)
        if degraded is None:
            return Certainty.YES
        return Certainty.UNKNOWN if degraded.startswith("durability unknown") else Certainty.NO


def lacking(version: tuple[int, int], *, syncs_always: bool | None) -> str | None:
    """Return why a server is not durable, and what to change; None when it is. Pure."""
    if version < LEAST_VERSION:
        major, minor = version
        return f"not durable: nats-server {major}.{minor} has no sync_interval: always; upgrade it to 2.10 or newer"
    if syncs_always:
        return None
    if syncs_always is None:
        return (
            "durability unknown: JetStream's default is an fsync every 2 minutes; "
            f"{_REMEDY}, and here NATS_MONITOR_URL, or NATS_SYNC_ALWAYS=true if you know it is set"
        )
    return f"not durable: the server syncs its files only now and then; {_REMEDY}"


def read_varz(document: Any) -> bool | str:
    """Whether the server that `/varz` describes syncs always, or why that is not known. Pure."""
    try:
        config = document["jetstream"]["config"]
    except (KeyError, TypeError):
        return "its answer says nothing of JetStream"
    return (
        bool(config.get("sync_always", False))
        if isinstance(config, dict)
        else "its answer is no configuration"
    )


async def _probe(monitor_url: str) -> bool | str:
    try:
        async with httpx2.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as http:
            answer = await http.get(f"{monitor_url.rstrip('/')}/varz")
            answer.raise_for_status()
            return read_varz(answer.json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        return str(error) or type(error).__name__
