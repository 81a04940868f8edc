"""Whether a delivery is what its queue is for: body -> message, or the reason for its refusal. Pure."""

from solstice_common.delivery import Refuse
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobCancelV1, JobRequestV1, decode_request


def examine(body: bytes) -> JobRequestV1 | Refuse:
    """The request, or why it will never be one."""
    try:
        return decode_request(body)
    except InvalidMessage as wrong:
        return Refuse(reason=wrong.reason, detail=wrong.detail)


def examine_cancel(body: bytes) -> JobCancelV1 | Refuse:
    """The wish to cancel, or why it will never be one."""
    try:
        return JobCancelV1.decode(body)
    except InvalidMessage as wrong:
        return Refuse(reason=wrong.reason, detail=wrong.detail)
