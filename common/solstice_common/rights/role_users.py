"""The rights of the users of roles at a broker, and how to make them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from solstice_common.addresses.broker_urls import parsed_url
from solstice_common.errors import ConfigurationError
from solstice_common.rights.nats_rights import nats_rights
from solstice_common.rights.rabbitmq_rights import rabbitmq_rights
from solstice_common.rights.redis_rights import redis_rights
from solstice_common.rights.roles import PURPOSES, Role
from solstice_common.settings import BROKER_SCHEMES, BROKER_URLS, BrokerSettings, known_broker_url

Right = tuple[str, str]
"""One right, and its target: an object, a key or a subject; empty for a command of Redis that has no key."""

_WITHOUT_USERS: Final = frozenset({"embedded", "memory"})
FORM: Final = f"must be a URL with a host: {BROKER_URLS}"
NO_USERS: Final = "AMQP_URL: the embedded broker has no users: the mode of its file decides"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleUser:
    """A user with exactly the rights of its roles."""

    user: str
    roles: Sequence[Role]
    rights: Mapping[str, Sequence[str]]
    """Names of objects, commands, keys or subjects under each kind of right."""
    single: frozenset[Right]
    """The same, each right by itself."""
    lines: Sequence[str]
    """The commands, or the part of a configuration, that make the user."""

    @property
    def purposes(self) -> Sequence[str]:
        return [f"{role}: {PURPOSES[role]}" for role in self.roles]

    def document(self) -> Mapping[str, object]:
        """Return the check as JSON shows it."""
        return {
            "user": self.user,
            "roles": list(self.roles),
            "rights": {kind: list(names) for kind, names in self.rights.items()},
            "lines": list(self.lines),
        }


def users_of_roles(settings: BrokerSettings, user: str, roles: Sequence[Role]) -> RoleUser:
    """Return the user with the rights of all these roles.

    Raises ConfigurationError for a broker without users, and for a URL that cannot be taken apart.
    """
    transport = known_broker_url(settings.amqp_url)
    if transport not in _WITHOUT_USERS:
        # urlsplit takes a password for a part of the path, or repeats it in its error.
        parsed_url(settings.amqp_url, schemes=BROKER_SCHEMES, form=FORM)
    if transport == "rabbitmq":
        rabbitmq = reduce(or_, (rabbitmq_rights(role, settings) for role in roles))
        vhost = unquote(urlsplit(settings.amqp_url).path.removeprefix("/")) or "/"
        rights = {**rabbitmq.names(), "tags": sorted(rabbitmq.tags)}
        return RoleUser(
            user=user,
            roles=roles,
            rights=rights,
            single=_single(rights),
            lines=rabbitmq.commands(user, vhost),
        )
    if transport == "redis":
        redis = reduce(or_, (redis_rights(role, settings) for role in roles))
        prefix = dict(parse_qsl(urlsplit(settings.amqp_url).query)).get("prefix", "")
        return RoleUser(
            user=user,
            roles=roles,
            rights=redis.names(),
            single=redis.single(),
            lines=redis.commands(user, prefix),
        )
    if transport == "nats":
        nats = reduce(or_, (nats_rights(role, settings) for role in roles))
        subjects = nats.names(user)
        return RoleUser(
            user=user, roles=roles, rights=subjects, single=_single(subjects), lines=nats.lines(user)
        )
    raise ConfigurationError(NO_USERS)


def user_of(url: str) -> str | None:
    """Return the user whom a broker's URL names; raises as `users_of_roles` does."""
    transport = known_broker_url(url)
    if transport in _WITHOUT_USERS:
        raise ConfigurationError(NO_USERS)
    parsed = parsed_url(url, schemes=BROKER_SCHEMES, form=FORM)
    # A user without a password before the host of a NATS server is a token.
    is_token = transport == "nats" and parsed.password is None and "password_file" not in parsed.query
    return None if is_token else parsed.user


def _single(rights: Mapping[str, Sequence[str]]) -> frozenset[Right]:
    return frozenset((right, target) for right, targets in rights.items() for target in targets)
