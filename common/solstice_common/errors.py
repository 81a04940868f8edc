"""Every error that crosses a module border.

SolsticeError
├── ConfigurationError       a setting is wrong: fix it and start again
├── InvalidMessage           a message is wrong: it is refused, never retried
├── InvalidWorkflow          a workflow file is wrong: its author must fix it
├── BrokerError
│   ├── BrokerUnavailable    no connection now: retry later
│   │   └── RightMissing     its user may not do that: an operator grants the right, services retry until then
│   ├── DeadLettersInUse     another reader holds the dead letters: try again when it has ended
│   └── TopologyMismatch     the broker holds the object with other arguments: a person must decide
├── StoreError
│   ├── StoreUnavailable     the database does not answer or cannot write: retry later
│   └── SchemaTooNew         the database was written by a newer version: upgrade this one
└── ServiceError
    ├── ServiceUnavailable   no service answers at that URL: start it, or try again later
    └── ServiceRefused       the service answered, and the answer is no

A normal "no" (a duplicate, an event that no rule builds, an attempt that lost its lease) is a value, not an error.
"""

from collections.abc import Mapping
from typing import Final, Literal


class SolsticeError(Exception):
    """The base class of the errors of Solstice CI."""


class ConfigurationError(SolsticeError):
    """A setting is missing or wrong; the process cannot start with it."""


InvalidReason = Literal[
    "not_utf8", "not_json", "not_an_object", "oversize", "unknown_version", "invalid_field"
]


class InvalidMessage(SolsticeError):
    """A message breaks its schema; sending it again changes nothing.

    `reason` is one word for headers and metrics; `detail` says what is wrong and where.
    """

    def __init__(self, reason: InvalidReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: InvalidReason = reason
        self.detail = detail


class InvalidWorkflow(SolsticeError):
    """A workflow file cannot be used as it stands; reading it again changes nothing.

    `line` and `column` count from 1, columns in characters; `problem` is a sentence for the file's author.
    """

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")
        self.line = line
        self.column = column
        self.problem = problem


class BrokerError(SolsticeError):
    """The message broker refused or did not answer."""


class BrokerUnavailable(BrokerError):
    """There is no connection to the broker at the moment.

    It may come back, so try again later.
    """

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"no connection to the broker at {url}: {detail}")
        self.url = url
        self.detail = detail


class RightMissing(BrokerUnavailable):
    """The user of the broker lacks a right, which an operator has to grant.

    `right` is the broker's word for it: `configure`, `write`, `read`, a command or key of Redis, a subject of NATS.
    `target` is the object with its kind.
    """

    REMEDY: Final = "'solstice topology users' prints the rights of each role"

    def __init__(self, url: str, *, user: str, right: str, target: str) -> None:
        why = self.sentence(user=user, right=right, target=target)
        super().__init__(url, why)
        self.args = (f"the broker at {url} refuses: {why}; {self.REMEDY}",)
        self.user = user
        self.right = right
        self.target = target

    @staticmethod
    def sentence(*, user: str, right: str, target: str) -> str:
        """Return what the user lacks, in words."""
        return f"the user {user!r} lacks the right {right!r} on the {target}"


class DeadLettersInUse(BrokerError):
    """Another reader holds dead letters: they cannot be read or removed now.

    `number` is None where the broker does not say how many.
    """

    def __init__(self, queue: str, number: int | None) -> None:
        super().__init__(
            f"{self.sentence(queue, number)} (a command or page at work, a shovel, or another consumer): "
            "try again when it has ended"
        )
        self.queue = queue
        self.number = number

    @staticmethod
    def sentence(queue: str, number: int | None) -> str:
        """Return how many are not readable, in words."""
        if number is None:
            return f"another reader has {queue} open, and what it holds cannot be read"
        what = "1 dead letter" if number == 1 else f"{number} dead letters"
        return f"{what} of {queue} cannot be read: another reader holds {'it' if number == 1 else 'them'}"


class TopologyMismatch(BrokerError):
    """An exchange or queue already exists with other properties than ours."""

    def __init__(
        self, kind: str, name: str, declared_arguments: Mapping[str, object], on_broker: str
    ) -> None:
        declared = (
            ", ".join(f"{key}={value!r}" for key, value in sorted(declared_arguments.items()))
            or "no arguments"
        )
        super().__init__(
            f"{kind} {name!r} exists on the broker with other properties than ours.\n"
            f"  ours:   {declared}\n"
            f"  broker: {on_broker}\n"
            f"Either set AMQP_QUEUE_TYPE (or the object's name) to match the broker, or drain and delete the "
            f"{kind} there and start again."
        )
        self.kind = kind
        self.name = name
        self.declared_arguments = dict(declared_arguments)
        self.on_broker = on_broker


class StoreError(SolsticeError):
    """The database refused or did not answer."""


class StoreUnavailable(StoreError):
    """The database cannot be read or written at the moment.

    Nothing was changed, so try again later.
    """

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"the database {where} cannot be used now: {detail}")
        self.where = where
        self.detail = detail


class SchemaTooNew(StoreError):
    """The database was migrated by a newer Solstice CI than this one."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"the database {where} has schema version {found}, this Solstice CI knows {known}: "
            "upgrade Solstice CI, or use another database"
        )
        self.found = found
        self.known = known


class ServiceError(SolsticeError):
    """Another service of Solstice CI did not carry out an HTTP request."""


class ServiceUnavailable(ServiceError):
    """No service answers at the URL, or not in time.

    It may come back, so try again later.
    """

    def __init__(self, service: str, url: str, detail: str, advice: str = "") -> None:
        super().__init__(
            f"no {service} answers at {url}: {advice or detail}" + (f" ({detail})" if advice else "")
        )
        self.url = url
        self.detail = detail


class ServiceRefused(ServiceError):
    """The service answered with an error; `code` is its word for it (`not_found`, `conflict`, ...)."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def first_of(error: BaseException) -> BaseException:
    """Return the error itself, or the first one inside a TaskGroup's group.

    The others are usually consequences of the first.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
