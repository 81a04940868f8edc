"""The subjects of NATS that each role needs, as a server's configuration. Pure.

Source: docs.nats.io/running-a-nats-service/configuration/securing_nats/authorization,
docs.nats.io/reference/reference-protocols/nats_api_reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from solstice_common.broker.jetstream.jetstream_names import (
    DURABLE,
    TOPOLOGY_BUCKET,
    TOPOLOGY_KEY,
    presence_subject,
    stream_of,
)
from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, full_topology, jobs_route, split_jobs_route

API: Final = "$JS.API"
BUCKET: Final = f"KV_{TOPOLOGY_BUCKET}"
TABLE: Final = f"$KV.{TOPOLOGY_BUCKET}.{TOPOLOGY_KEY}"
CONNECT: Final = (f"{API}.INFO", f"{API}.STREAM.INFO.{BUCKET}", f"{API}.STREAM.MSG.GET.{BUCKET}")
"""What every connection asks: whether there is JetStream, and the table of exchanges and bindings."""

NO_SUBJECT: Final = '{ deny: ">" }'


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsRights:
    """The subjects that a user may publish and subscribe to, its own inbox beside them.

    A user may always answer a request that it received.
    """

    publish: frozenset[str] = field(default=frozenset(CONNECT))
    subscribe: frozenset[str] = field(default=frozenset())

    def __or__(self, other: "NatsRights") -> "NatsRights":
        """Return the rights of both."""
        return NatsRights(publish=self.publish | other.publish, subscribe=self.subscribe | other.subscribe)

    def names(self, user: str) -> Mapping[str, Sequence[str]]:
        """Return the subjects under each right, sorted."""
        return {
            "publish": sorted(self.publish),
            "subscribe": sorted({*self.subscribe, f"_INBOX.{user}.>"}),
        }

    def lines(self, user: str) -> Sequence[str]:
        """Return the entry of the list `authorization { users: [ ... ] }`, with a password to replace."""
        return user_entry(user, "PASSWORD", self.names(user))


def user_entry(user: str, password: str, names: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The entry of a user with these subjects under `publish` and `subscribe`, and no others."""
    listed = {right: ", ".join(f'"{each}"' for each in subjects) for right, subjects in names.items()}
    return [
        f'{{ user: "{user}", password: "{password}", permissions: {{',
        # An empty list would allow everything.
        *(
            f"    {right}: " + (f"[{subjects}]" if subjects else NO_SUBJECT) + ","
            for right, subjects in listed.items()
        ),
        '    allow_responses: { max: 1, expires: "1m" } } }',
    ]


def nats_rights(role: Role, settings: BrokerSettings) -> NatsRights:
    """Return the rights of one role under the names that the settings give.

    Services do not declare: the admin has done so. With the rights of `admin` as well they do it themselves.
    """
    jobs = _with_classes(jobs_route(settings))
    # Services follow queues of classes that another setting has left.
    classes = tuple(each for each in _finding(settings) if not each.endswith("_dlq"))
    match role:
        case Role.FORGE_INTEGRATION:
            return _rights(
                _seeing(*jobs, CANCELS, STATUSES),
                classes,
                _publishing(*(each.queue for each in (*jobs, CANCELS))),
                _publishing(STATUSES.dlq),
                _counting(*(each.queue for each in jobs)),
                _reading(STATUSES.queue),
                present=(STATUSES.queue,),
            )
        case Role.ORCHESTRATOR:
            reads = tuple(each.queue for each in (*jobs, CANCELS))
            return _rights(
                _seeing(*jobs, CANCELS, STATUSES),
                classes,
                _publishing(STATUSES.queue, *(each.dlq for each in (*jobs, CANCELS))),
                _counting(*(each.name for each in full_topology(settings).queues)),
                _reading(*reads),
                present=reads,
            )
        case Role.PUBLISHER:
            return _rights(_seeing(*jobs), _publishing(*(each.queue for each in jobs)))
        case Role.OPERATOR:
            dead = tuple(each.dlq for each in (*jobs, CANCELS, STATUSES))
            return _rights(
                _seeing(*jobs, CANCELS, STATUSES),
                _publishing(*(each.queue for each in (*jobs, CANCELS, STATUSES)), *dead),
                _counting(*dead),
                tuple(f"{API}.STREAM.MSG.GET.{stream_of(name)}" for name in dead),
                # Reads many with one request; without it, each costs one.
                tuple(f"{API}.DIRECT.GET.{stream_of(name)}" for name in dead),
                tuple(f"{API}.STREAM.MSG.DELETE.{stream_of(name)}" for name in dead),
                present=dead,
            )
        case Role.ADMIN:
            return _rights(_comparing(settings), _declaring(settings))
        case Role.MONITORING:
            return _rights(_comparing(settings))


def _rights(*subjects: Sequence[str], present: Sequence[str] = ()) -> NatsRights:
    """`present` are the queues whose readers tell others what they hold."""
    return NatsRights(
        publish=frozenset({*CONNECT, *(each for some in subjects for each in some)}),
        subscribe=frozenset(presence_subject(name) for name in present),
    )


def _seeing(*routes: Route) -> tuple[str, ...]:
    """Return what shows that queues and their consumers exist."""
    streams = [stream_of(name) for each in routes for name in (each.queue, each.dlq)]
    return tuple(
        subject
        for stream in streams
        for subject in (f"{API}.STREAM.INFO.{stream}", f"{API}.CONSUMER.INFO.{stream}.{DURABLE}")
    )


def _publishing(*queues: str) -> tuple[str, ...]:
    """Return the subjects of queues, which are their names."""
    return queues


def _reading(*queues: str) -> tuple[str, ...]:
    """Return what receives messages, and reads a large one once more for its dead letter."""
    streams = [stream_of(name) for name in queues]
    return tuple(
        subject
        for stream in streams
        for subject in (
            f"{API}.CONSUMER.MSG.NEXT.{stream}.{DURABLE}",
            f"{API}.STREAM.MSG.GET.{stream}",
            f"$JS.ACK.{stream}.{DURABLE}.>",
        )
    )


def _counting(*queues: str) -> tuple[str, ...]:
    """Return what asks the readers of queues how much they hold."""
    return tuple(presence_subject(name) for name in queues)


def _finding(settings: BrokerSettings) -> tuple[str, ...]:
    """Return what shows whether queues of priority classes are left from another setting."""
    classes = split_jobs_route(settings).classes.values()
    return tuple(
        f"{API}.STREAM.INFO.{stream_of(name)}" for each in classes for name in (each.queue, each.dlq)
    )


def _comparing(settings: BrokerSettings) -> tuple[str, ...]:
    streams = [stream_of(each.name) for each in full_topology(settings).queues]
    return (
        f"{API}.STREAM.NAMES",
        *(
            f"{API}.{question}.{stream}"
            for stream in streams
            for question in ("STREAM.INFO", "CONSUMER.LIST")
        ),
        *_finding(settings),
    )


def _declaring(settings: BrokerSettings) -> tuple[str, ...]:
    streams = [stream_of(each.name) for each in full_topology(settings).queues]
    return (
        TABLE,
        f"{API}.STREAM.CREATE.{BUCKET}",
        *(f"{API}.STREAM.CREATE.{stream}" for stream in streams),
        *(
            f"{API}.CONSUMER.{verb}.{stream}.{DURABLE}"
            for stream in streams
            for verb in ("INFO", "DURABLE.CREATE")
        ),
    )


def _with_classes(route: Route) -> Sequence[Route]:
    return [route, *route.classes.values()]
