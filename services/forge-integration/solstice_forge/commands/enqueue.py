"""Implements `enqueue`: requests the build of one commit without a forge.

It can wait for the result.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson
from pydantic import Field

from solstice_common.broker import Broker, Published, PublishStatus, open_broker
from solstice_common.cli.local_repository import as_url
from solstice_common.errors import ConfigurationError, InvalidMessage, RightMissing
from solstice_common.messages import JobRequestV1, derive_request_id
from solstice_common.messages.fields import RESERVED_IDS
from solstice_common.settings import BrokerSettings, ClientSettings, SigningSettings
from solstice_common.signing.signer import signing
from solstice_common.topology import QueueType, jobs_route
from solstice_common.values.delays import MAX_DELAY, parse_delay, parse_moment, too_far
from solstice_common.values.repo_urls import full_name_of
from solstice_common.values.times import format_timestamp
from solstice_forge.relay.publication import publication

TRIES: Final = 3
"""How often a publish whose outcome is unknown is repeated, with the same key."""


class EnqueueSettings(BrokerSettings, SigningSettings, ClientSettings):
    """The broker to publish to, and the orchestrator that `--wait` asks."""

    enqueue_connect_seconds: float = Field(
        default=10.0, gt=0, description="How long to try to reach the broker."
    )
    enqueue_confirm_seconds: float = Field(
        default=10.0, gt=0, description="How long to wait for the broker's confirm, each time."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueInput:
    """The options that the person gave."""

    repo_url: str
    commit_sha: str
    repo_full_name: str | None = None
    """None: what the URL says."""
    runs_on: str | None = None
    workflow_path: str | None = None
    workflow_job_id: str | None = None
    ref: str | None = None
    priority: str | None = None
    idempotency_key: str | None = None
    inputs: Sequence[str] = ()
    """Each `name=value`."""
    not_before: str | None = None
    """RFC 3339, with any offset."""
    delay: str | None = None
    """`90`, `30s`, `15m`, `2h`, `1d`; not beside `not_before`."""


def job_request(request_input: EnqueueInput, *, now: datetime, new_id: uuid.UUID) -> JobRequestV1:
    """Return the message for a request; ConfigurationError names the option that is wrong.

    The same idempotency key gives the same request id, so that a repeated command is one run.
    """
    key = request_input.idempotency_key or str(new_id)
    if key.startswith(RESERVED_IDS):
        raise ConfigurationError(
            f"--idempotency-key {key[:40]!r}: {', '.join(RESERVED_IDS)} begin keys of Solstice's own; choose another"
        )
    url = as_url(request_input.repo_url)
    fields = {
        "schema_version": JobRequestV1.VERSION,
        "request_id": derive_request_id("manual", key),
        "source": "manual",
        "repo_url": url,
        "repo_full_name": request_input.repo_full_name or full_name_of(url),
        "commit_sha": request_input.commit_sha.lower(),
        "submitted_at": format_timestamp(now),
        "event": "manual",
        # A person who may publish to the broker may run code here anyway.
        "trusted": True,
        "runs_on": request_input.runs_on,
        "workflow_path": request_input.workflow_path,
        "workflow_job_id": request_input.workflow_job_id,
        "ref": request_input.ref,
        "priority": request_input.priority,
        "inputs": _inputs(request_input.inputs),
        "not_before": _not_before(request_input, now),
        "idempotency_key": key,
    }
    if len(request_input.commit_sha) not in {40, 64}:
        raise ConfigurationError(
            f"--commit-sha {request_input.commit_sha!r}: the full commit id is needed, 40 or 64 hexadecimal digits; "
            "'git rev-parse HEAD' prints it"
        )
    try:
        return JobRequestV1.decode(
            orjson.dumps({name: value for name, value in fields.items() if value is not None})
        )
    except InvalidMessage as error:
        raise ConfigurationError(f"this is no job request: {error.detail}") from None


@asynccontextmanager
async def open_for_requests(settings: EnqueueSettings, name: str) -> AsyncIterator[Broker]:
    """A broker that takes requests: connected, with the topology declared.

    It signs where the settings say so. Raises BrokerUnavailable, RightMissing, TopologyMismatch.
    """
    async with open_broker(
        settings.amqp_url, name=name, confirm_timeout_seconds=settings.enqueue_confirm_seconds
    ) as opened:
        broker = signing(opened, settings)
        await broker.ready(settings.enqueue_connect_seconds)
        await broker.declare(jobs_route(settings).topology(QueueType(settings.amqp_queue_type)))
        yield broker


async def publish(request: JobRequestV1, settings: EnqueueSettings) -> Published:
    """Declare the topology and publish; retry an unknown outcome with the same key.

    Raises what `open_for_requests` raises.
    """
    jobs = jobs_route(settings)
    async with open_for_requests(settings, "solstice enqueue") as broker:
        for attempt in range(1, TRIES + 1):
            message = publication(request.encode(), jobs, attempt=attempt)
            (published,) = await broker.publish([message])
            if published.status is not PublishStatus.UNKNOWN:
                break
            await asyncio.sleep(attempt)
        return published


def advice(published: Published, request: JobRequestV1, settings: BrokerSettings) -> str:
    """Say what happened to an unconfirmed message, and what to do next."""
    route = jobs_route(settings).of(request.priority)
    detail = f" ({published.detail})" if published.detail else ""
    match published.status:
        case PublishStatus.UNROUTABLE:
            return (
                f"unroutable: no queue is bound to the exchange {settings.amqp_exchange!r} with the key "
                f"{route.routing_key!r}, so the broker dropped the request{detail}. "
                "'solstice topology show' says what is expected; check AMQP_EXCHANGE and AMQP_ROUTING_KEY."
            )
        case PublishStatus.REJECTED if published.lacks_right:
            return f"rejected: {published.detail}; {RightMissing.REMEDY}."
        case PublishStatus.REJECTED:
            return (
                f"rejected: the broker did not take the request{detail}. The queue {route.queue!r} may be "
                "full: see that an orchestrator consumes it, then try again."
            )
        case PublishStatus.UNKNOWN:
            return (
                f"unknown: no confirm after {TRIES} tries{detail}. The broker may have the request. Run the same "
                f"command again with --idempotency-key {request.idempotency_key}: it will be one run."
            )
        case PublishStatus.CONFIRMED:
            return "confirmed"


def _inputs(given: Sequence[str]) -> Mapping[str, str] | None:
    """Return the inputs by name; None without any."""
    inputs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigurationError(f"--input {each[:80]!r}: write NAME=VALUE")
        if name in inputs:
            raise ConfigurationError(f"--input {name[:80]!r} is given twice")
        inputs[name] = value
    return inputs or None


def _not_before(request_input: EnqueueInput, now: datetime) -> str | None:
    """Return the earliest start in UTC; None for at once."""
    if request_input.not_before is not None and request_input.delay is not None:
        raise ConfigurationError("--not-before and --delay: give one of them")
    option, typed = ("--not-before", request_input.not_before)
    if request_input.delay is not None:
        option, typed = "--delay", request_input.delay
    if typed is None:
        return None
    try:
        moment = parse_moment(typed) if request_input.delay is None else now + parse_delay(typed)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{option} {typed!r}: {error}") from None
    if too_far(moment, now):
        raise ConfigurationError(
            f"{option} {typed!r}: that is more than {MAX_DELAY.days} days ahead, which is too far"
        )
    return format_timestamp(moment)
