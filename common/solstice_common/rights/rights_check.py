"""Compares the rights of a broker's user with those that its roles need. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from solstice_common.broker.topology_check import TopologyDifference
from solstice_common.rights.rabbitmq_rights import MANAGEMENT
from solstice_common.rights.role_users import Right, RoleUser, users_of_roles
from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings, known_broker_url

RABBITMQ_TAGS: Final = frozenset({MANAGEMENT, "policymaker", "monitoring", "administrator"})
RABBITMQ_RIGHTS: Final = ("configure", "write", "read")


def comparable_rights(settings: BrokerSettings, user: str) -> frozenset[Right]:
    """Return every right that some role needs.

    On RabbitMQ also every right on every object of Solstice CI, and every tag. Raises what `users_of_roles` does.
    """
    every = users_of_roles(settings, user, list(Role)).single
    if known_broker_url(settings.amqp_url) != "rabbitmq":
        return every
    objects = {target for right, target in every if right in RABBITMQ_RIGHTS}
    return every.union(
        ((right, name) for right in RABBITMQ_RIGHTS for name in objects),
        (("tags", tag) for tag in RABBITMQ_TAGS),
    )


def rights_differences(needed: RoleUser, granted: Collection[Right]) -> Sequence[TopologyDifference]:
    """Return what the user lacks for its roles, then what it may do beyond."""
    roles = " ".join(f"--role {each}" for each in needed.roles)
    remedy = f"'solstice topology users {roles} --user {needed.user}' prints what gives it exactly its rights"
    lacks = {each for each in needed.single if each not in granted}
    beyond = {each for each in granted if each not in needed.single}
    return [
        TopologyDifference(object=f"user {needed.user}", difference=difference, remedy=remedy)
        for difference in (
            *(f"lacks {each}" for each in _in_words(lacks)),
            *(f"has {each}, which no role of it needs" for each in _in_words(beyond)),
        )
    ]


def targets_of(rights: Collection[Right]) -> Mapping[str, Sequence[str]]:
    """Return the targets under each right, both sorted; a right on no object has none."""
    return {
        right: [target for each, target in sorted(rights) if each == right and target]
        for right in sorted({right for right, _ in rights})
    }


def _in_words(rights: Collection[Right]) -> Iterator[str]:
    """Yield one phrase for all rights on the same targets."""
    by_targets: dict[tuple[str, ...], list[str]] = {}
    for right, targets in targets_of(rights).items():
        by_targets.setdefault(tuple(targets), []).append(f"'{right}'")
    for targets, names in by_targets.items():
        words = f"the right{'s' if len(names) > 1 else ''} {', '.join(names)}"
        yield f"{words} on {', '.join(targets)}" if targets else words
