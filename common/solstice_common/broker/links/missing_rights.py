"""Logs rights that a broker's user lacks, which are no lost link."""

from typing import Final

import structlog

from solstice_common.broker.links.supervised_link import ConnectionLost
from solstice_common.errors import RightMissing
from solstice_common.telemetry.log_events import LogEvent

DECLARING: Final = "declaring"
PUBLISHING: Final = "publishing"
CONSUMING: Final = "consuming"

log = structlog.get_logger(__name__)


class RightRefused(ConnectionLost):
    """The broker refused an operation, because its user lacks a right.

    `right` is the broker's word for it, `target` the object with its kind.
    """

    def __init__(self, *, user: str, right: str, target: str) -> None:
        super().__init__(RightMissing.sentence(user=user, right=right, target=target))
        self.user = user
        self.right = right
        self.target = target

    def log(self, operation: str) -> None:
        """See `ConnectionLost.log`; the operation is tried again later."""
        log.error(
            LogEvent.RIGHT_MISSING,
            user=self.user,
            right=self.right,
            target=self.target,
            operation=operation,
            remedy=RightMissing.REMEDY,
        )

    def at(self, url: str, detail: str = "") -> RightMissing:  # noqa: ARG002  the right says it all
        """See `ConnectionLost.at`."""
        return RightMissing(url, user=self.user, right=self.right, target=self.target)
