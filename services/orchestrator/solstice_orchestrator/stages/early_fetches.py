"""Begins to fetch workflow files while their requests are being stored.

Planning claims a run after it was stored, and then needs the file: to the fetch it makes no difference when it begins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from solstice_common.messages import JobRequestV1


class EarlyFetches:
    """Passes requests on from intake to planning, while both run."""

    def __init__(self) -> None:
        self._fetch: Callable[[JobRequestV1], None] | None = None

    def begin(self, requests: Sequence[JobRequestV1]) -> None:
        """Begin what planning will most likely need at once; its failures are of no interest."""
        if self._fetch is not None:
            for request in requests:
                if request.not_before is None:
                    self._fetch(request)

    @contextmanager
    def through(self, fetch: Callable[[JobRequestV1], None]) -> Iterator[None]:
        """Let requests be fetched by `fetch`, which does not wait."""
        self._fetch = fetch
        try:
            yield
        finally:
            self._fetch = None
