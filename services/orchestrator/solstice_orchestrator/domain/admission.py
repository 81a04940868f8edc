"""Decode and check the body of a delivery: the message, or a refusal. Pure."""

from datetime import UTC, datetime

from solstice_common.broker.delivery import Refuse
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobCancelV1, JobRequestV1, decode_request
from solstice_common.values.delays import CLOCK_TOLERANCE, MAX_DELAY, too_far
from solstice_common.values.times import parse_timestamp


def examine(body: bytes, now: float) -> JobRequestV1 | Refuse:
    """Decode a request, or refuse it for good; `now` in seconds since the epoch."""
    try:
        request = decode_request(body)
    except InvalidMessage as wrong:
        return Refuse(reason=wrong.reason, detail=wrong.detail)
    if request.not_before is None:
        return request
    # The sender's clock may differ from ours.
    latest = datetime.fromtimestamp(now, UTC) + CLOCK_TOLERANCE
    if too_far(parse_timestamp(request.not_before), latest):
        return Refuse(
            reason="not_before_too_far",
            detail=f"not_before: {request.not_before} is more than {MAX_DELAY.days} days ahead",
        )
    return request


def examine_cancel(body: bytes) -> JobCancelV1 | Refuse:
    """Decode a cancel request, or refuse it for good."""
    try:
        return JobCancelV1.decode(body)
    except InvalidMessage as wrong:
        return Refuse(reason=wrong.reason, detail=wrong.detail)
