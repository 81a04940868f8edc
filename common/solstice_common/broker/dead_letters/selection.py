"""Selects dead letters by the filters that a person gives. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_queue import ID_DIGITS
from solstice_common.messages import Priority
from solstice_common.values.globs import InvalidGlob, compiled

LEAST_OF_AN_ID: Final = 4
"""Characters of an id that are enough to name a dead letter."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Filters that must all match; an empty one or None matches everything."""

    ids: Sequence[str] = ()
    """Ids, or their beginnings."""
    reason: str | None = None
    repository: str | None = None
    """OWNER/NAME as the forge has it, a pattern of it (see `globs`), or the URL."""
    priority: Priority | None = None
    since: datetime | None = None
    """Only dead letters that were refused since this moment."""
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Headers, by name; a number or a boolean as JSON writes it."""

    @cached_property
    def _whole_ids(self) -> frozenset[str]:
        return frozenset(each for each in self.ids if len(each) == ID_DIGITS)

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        return tuple(each for each in self.ids if len(each) != ID_DIGITS)

    @property
    def takes_all(self) -> bool:
        """Whether no filter is set."""
        return self == Selection()

    def fits(self, found: DeadLetterFacts) -> bool:
        """Whether a dead letter matches."""
        return (
            (not self.ids or found.id in self._whole_ids or found.id.startswith(self._beginnings))
            and self.reason in {None, found.reason}
            and (self.repository is None or _is_repository(self.repository, found.repository))
            and self.priority in {None, found.priority}
            and (self.since is None or (found.dead_since is not None and found.dead_since >= self.since))
            and all(_has(found, name, value) for name, value in self.where.items())
        )


def died_since(now: datetime, seconds: float) -> datetime:
    """Return the moment so many seconds ago, or the earliest possible one."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def condition(text: str) -> tuple[str, str]:
    """Return the header and value of `KEY=VALUE`; ValueError for anything else."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(
            f"{text!r} is no condition: write HEADER=VALUE, such as x-solstice-queue=solstice.jobs.v1"
        )
    return name, value


def _is_repository(name_given: str, repository: str) -> bool:
    if name_given == repository:
        return True
    try:
        return compiled(name_given).fullmatch(repository) is not None
    except InvalidGlob:
        return False


def _has(found: DeadLetterFacts, name: str, value: str) -> bool:
    if name not in found.dead_letter.headers:
        return False
    given = found.dead_letter.headers[name]
    return value == (str(given).lower() if isinstance(given, bool) else str(given))
