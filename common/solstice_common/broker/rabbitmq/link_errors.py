"""What ends a link to RabbitMQ: errors that aiormq reports, rights that are missing."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from aiormq.exceptions import AMQPError, ChannelAccessRefused

from solstice_common.addresses.tls import with_remedy
from solstice_common.broker.links.missing_rights import RightRefused
from solstice_common.broker.links.supervised_link import ConnectionLost

REFUSED: Final = re.compile(
    r"ACCESS_REFUSED - (?:(?P<right>configure|write|read) )?access to (?P<kind>exchange|queue) '(?P<name>[^']*)' "
    r"in vhost '[^']*' refused for user '(?P<user>[^']*)'"
)
"""How RabbitMQ names a missing permission (rabbit_access_control); before 3.12 without the right."""
TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
"""How RabbitMQ names a message above its `max_message_size`, when it closes the channel."""
TO_DECLARE: Final = MappingProxyType({"exchange": "write", "queue": "configure or read"})
"""The rights that a queue's declaration needs, by the kind of object; a dead-letter exchange asks for the others."""
TO_DECLARE_EXCHANGE: Final = MappingProxyType({"exchange": "configure"})
TO_BIND: Final = MappingProxyType({"exchange": "read", "queue": "write"})
TO_PUBLISH: Final = MappingProxyType({"exchange": "write"})
TO_READ: Final = MappingProxyType({"queue": "read"})


class LinkLost(ConnectionLost):
    """The connection or channel is lost, or did not answer in time."""


class AccessRefused(RightRefused, LinkLost):
    """The user of the connection lacks a permission; the channel is closed."""


def lost_link(why: str, needed: Mapping[str, str] = MappingProxyType({})) -> LinkLost:
    """Return the error for a channel that the broker closed with this reason.

    RabbitMQ before 3.12 does not name the right: it is the one that the call needs on an object of this kind.
    """
    found = REFUSED.search(why)
    if found is None:
        return LinkLost(why)
    return AccessRefused(
        user=found["user"],
        right=found["right"] or needed.get(found["kind"], "any"),
        target=f"{found['kind']} {found['name']}",
    )


@contextmanager
def link_errors(needed: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Convert every error of aiormq about a lost link into LinkLost.

    `needed` are the rights of the call, see `lost_link`.

    It surrounds each call to aiormq, and keeps cancellation intact.

    aiormq reports a failed heartbeat to waiting callers as CancelledError, though nothing cancelled them:
    without this, it would silently end a task, or a whole TaskGroup. And where an answer and a cancellation
    come in the same iteration of the event loop, `asyncio.wait_for` inside aiormq returns the answer and
    loses the cancellation.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling() > before:
            raise
        raise LinkLost(describe(error)) from error
    except TimeoutError as error:
        raise LinkLost("the broker did not answer in time") from error
    except ChannelAccessRefused as error:
        raise lost_link(describe(error), needed) from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise LinkLost(describe(error)) from error
    except Exception as error:
        if not _ends_without_reason(error):
            raise
        raise LinkLost(describe(error)) from error
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


def describe(error: BaseException) -> str:
    """Return the error text of the broker or of the system."""
    if isinstance(error, asyncio.CancelledError):
        return "the broker stopped answering (heartbeat)"
    if _ends_without_reason(error):
        return "the connection was closed"
    words = " ".join(str(part) for part in error.args if part is not None and part != "")
    return with_remedy(words) or type(error).__name__


def _ends_without_reason(error: BaseException) -> bool:
    """Whether aiormq says only that the connection has ended.

    Where its reader finds that end right behind a frame, it ends all calls that wait for an answer by a bare Exception.
    """
    return type(error) is Exception and not error.args
