"""Lists the dead letters of statuses without taking them, and sends them again.

`solstice dlq` does the same for every queue.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from solstice_common.broker import Broker, DeadLetterQueues
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import browse
from solstice_common.broker.dead_letters.replaying import Replay
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobStatusV1
from solstice_common.topology import STATUSES
from solstice_common.values.times import format_timestamp
from solstice_common.values.value import Value


class DeadStatus(Value, frozen=True, kw_only=True):
    """One dead letter, for people; fields that cannot be read are empty."""

    reason: str
    detail: str
    refused_at: str
    attempts: int
    source_name: str
    repository: str
    commit_sha: str
    context: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStatuses:
    """How many were sent again, and how many the broker did not take.

    The latter stay where they are.
    """

    sent: int
    left: int
    broken_off: str = ""
    """Why the connection to the broker was lost, or what another reader holds."""


async def dead_statuses(queues: DeadLetterQueues, limit: int) -> Sequence[DeadStatus]:
    """Return the oldest dead letters; all of them stay in the queue.

    Raises BrokerUnavailable.
    """
    return await browse(queues, [STATUSES.dlq], Selection(), dead_status, most=limit)


async def replay(
    broker: Broker, queues: DeadLetterQueues, limit: int, *, reason: str | None, by: str
) -> ReplayedStatuses:
    """Publish the first dead letters of the queue again, and remove the published ones.

    `reason`: only those with this reason. Raises BrokerUnavailable before anything is sent.
    """
    one = Replay(
        broker=broker,
        queues=queues,
        dlq=STATUSES.dlq,
        route=STATUSES,
        selection=Selection(reason=reason),
        most=limit,
        replay_id=uuid.uuid4().hex,
        by=by,
    )
    replayed = await one.run()
    return ReplayedStatuses(
        sent=len(replayed.sent),
        left=len(replayed.failed),
        broken_off=replayed.broken_off or replayed.not_read,
    )


def dead_status(finding: DeadLetterFacts) -> DeadStatus:
    """Return the contents of a dead letter."""
    try:
        status = JobStatusV1.decode(finding.dead_letter.body)
    except InvalidMessage:
        status = None
    brief = finding.brief()
    return DeadStatus(
        reason=brief.reason,
        detail=brief.detail,
        refused_at="" if finding.dead_since is None else format_timestamp(finding.dead_since),
        attempts=finding.attempt,
        source_name=(status and status.source_name) or "",
        repository=(status and (status.repo_full_name or status.repo_url)) or "",
        commit_sha=status.commit_sha if status else "",
        context=status.context if status else "",
        state=status.state if status else "",
    )
