"""The interface of every forge. Pure.

Headers, bytes, secrets and the time go in, values come out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from solstice_common.messages import Source
from solstice_common.values.value import Value
from solstice_forge.forges.events import Event, Ignored, Malformed

Headers = Mapping[str, str]
"""Lower-case names."""


class Genuine(Value, frozen=True, kw_only=True):
    """The signature is right.

    `payload` is the JSON text for `parse`, taken out of a form if necessary.
    """

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """The call is not proven to come from the forge: 401.

    `detail` says what was missing, never what would have been right.
    """

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A content type that this forge never sends: 415."""

    detail: str


class Forge(Protocol):
    """A module of `solstice_forge.forges`, or an object where two forges differ only in names."""

    @property
    def SOURCE(self) -> Source:  # noqa: N802  a constant
        ...

    def delivery_id(self, headers: Headers) -> str | None:
        """Return the forge's id of this delivery; None when the header is missing (400)."""
        ...

    def event_name(self, headers: Headers) -> str | None:
        """Return the forge's own name of the event; None when the header is missing (400)."""
        ...

    def unproven(self, headers: Headers, secrets: Sequence[str]) -> Forged | None:
        """Return why `verify` would refuse these headers with any body; None otherwise.

        The reason is that the headers that should prove the call are missing.
        """
        ...

    def verify(
        self, headers: Headers, body: bytes, secrets: Sequence[str], now: float
    ) -> Genuine | Forged | Unsupported:
        """Check the signature over the raw bytes, in constant time, against each live secret.

        No secret, an empty secret and an empty signature are refused. `now` is in seconds since the epoch.
        """
        ...

    def parse(self, event_name: str, payload: bytes) -> Event | Ignored | Malformed:
        """Return what the delivery means."""
        ...
