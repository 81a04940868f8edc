"""The commands and keys of Redis that each role needs, as an ACL. Pure.

Source: redis.io/docs/latest/operate/oss_and_stack/management/security/acl; selectors need Redis 7.0 or Valkey.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, Route, full_topology, jobs_route

TOPOLOGY: Final = "solstice:topology"
CONNECT: Final = ("client|setname", "evalsha", "info", "ping", "script|load")
"""What every connection runs, on no key."""
COMPARED: Final = ("pttl", "type", "xinfo|groups", "xinfo|stream", "xpending")
"""What `topology check` asks of each queue; `xinfo|stream` shows its oldest and newest message as well."""
READ: Final = (
    *("xack", "xclaim", "xdel", "xgroup|delconsumer", "xinfo|consumers", "xpending", "xrange", "xreadgroup"),
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands that a user may run, all on the same keys."""

    commands: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def rule(self, prefix: str) -> str:
        """Return the rule of an ACL; on keys, a selector."""
        commands = " ".join(f"+{each}" for each in self.commands)
        keys = " ".join(f"~{prefix}{each}" for each in self.keys)
        return f"({commands} {keys})" if keys else commands


@dataclass(frozen=True, slots=True)
class RedisRights:
    """The grants of one user."""

    grants: tuple[Grant, ...]

    def __or__(self, other: "RedisRights") -> "RedisRights":
        """Return the rights of both."""
        return RedisRights(tuple(dict.fromkeys((*self.grants, *other.grants))))

    def names(self) -> Mapping[str, Sequence[str]]:
        """Return the keys under the commands that may be run on them."""
        return {" ".join(grant.commands): grant.keys for grant in self.grants}

    def single(self) -> frozenset[tuple[str, str]]:
        """Return each command with each of its keys, or with an empty one."""
        return frozenset(
            (command, key)
            for grant in self.grants
            for command in grant.commands
            for key in grant.keys or ("",)
        )

    def rules(self, prefix: str = "") -> Sequence[str]:
        """Return the rules after `ACL SETUSER NAME`, without the password."""
        return ["resetkeys", "resetchannels", "-@all", *(grant.rule(prefix) for grant in self.grants)]

    def commands(self, user: str, prefix: str) -> Sequence[str]:
        """Return the command that makes such a user."""
        words = [word for rule in self.rules(prefix) for word in ([rule] if "(" in rule else rule.split())]
        return [shlex.join(["redis-cli", "ACL", "SETUSER", user, "reset", "on", ">PASSWORD", *words])]


def redis_rights(role: Role, settings: BrokerSettings) -> RedisRights:
    """Return the rights of one role under the names that the settings give.

    Services do not declare: the admin has done so. With the rights of `admin` as well they do it themselves.
    """
    jobs = _with_classes(jobs_route(settings))
    requests, dead = tuple(each.queue for each in jobs), tuple(each.dlq for each in jobs)
    declared = tuple(each.name for each in full_topology(settings).queues)
    read_topology = Grant(("hexists", "hget"), (TOPOLOGY,))
    match role:
        case Role.FORGE_INTEGRATION:
            grants = (
                # A service reads how durable the server is.
                Grant((*CONNECT, "config|get", "time")),
                read_topology,
                *_publishing(*requests, CANCELS.queue),
                *_counting(*requests),
                *_reading(STATUSES.queue),
                Grant(("xadd",), (STATUSES.dlq,)),
            )
        case Role.ORCHESTRATOR:
            grants = (
                Grant((*CONNECT, "config|get", "time")),
                read_topology,
                *_reading(*requests, CANCELS.queue),
                *_publishing(STATUSES.queue, *dead),
                Grant(("xadd",), (CANCELS.dlq,)),
                *_counting(*declared, reads=(*requests, CANCELS.queue)),
            )
        case Role.PUBLISHER:
            grants = (Grant((*CONNECT, "time")), read_topology, *_publishing(*requests))
        case Role.OPERATOR:
            everything = (*dead, CANCELS.dlq, STATUSES.dlq)
            grants = (
                Grant((*CONNECT, "time")),
                read_topology,
                *_publishing(*requests, CANCELS.queue, STATUSES.queue),
                *_reading(*everything)[:2],
                *_counting(*everything, reads=everything),
                Grant(("xadd",), everything),
            )
        case Role.ADMIN:
            grants = (
                Grant(CONNECT),
                Grant(("hexists", "hget", "hgetall", "hset"), (TOPOLOGY,)),
                Grant((*COMPARED, "xgroup|create"), declared),
            )
        case Role.MONITORING:
            grants = (
                Grant(("client|setname", "info", "ping")),
                Grant(("hgetall",), (TOPOLOGY,)),
                Grant(COMPARED, declared),
            )
    return RedisRights(grants)


def _publishing(*queues: str) -> tuple[Grant, ...]:
    """Return the keys of messages, of notifications, and of what recognises a repeat."""
    return (
        Grant(("xadd",), queues),
        Grant(("zadd",), tuple(f"{name}:new" for name in queues)),
        Grant(("pexpire", "sadd", "sismember"), tuple(f"{name}:idemp:*" for name in queues)),
    )


def _reading(*queues: str) -> tuple[Grant, ...]:
    """Return entries, the leases of consumers, and the sign that wakes a reader."""
    return (
        Grant(READ, queues),
        Grant(("zadd", "zrangebyscore", "zrem", "zscore"), tuple(f"{name}:consumers" for name in queues)),
        Grant(("bzpopmin", "zadd"), tuple(f"{name}:new" for name in queues)),
    )


def _counting(*queues: str, reads: Sequence[str] = ()) -> tuple[Grant, ...]:
    """Return what measures queues; who `reads` one may do some of it anyway."""
    others = tuple(name for name in queues if name not in reads)
    return (
        Grant(("xlen",), queues),
        *([Grant(("xinfo|consumers", "xpending"), others)] if others else []),
        Grant(("zcount", "zrange"), tuple(f"{name}:consumers" for name in queues)),
    )


def _with_classes(route: Route) -> Sequence[Route]:
    return [route, *route.classes.values()]
