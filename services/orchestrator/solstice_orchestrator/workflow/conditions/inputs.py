"""Manual inputs: the node `input`, and what a request gives for it. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from solstice_common.messages.fields import MAX_INPUT_CHARACTERS, MAX_INPUTS
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue
from solstice_orchestrator.workflow.shape import (
    children,
    did_you_mean,
    expect_arguments,
    expect_childless,
    line,
    one_of,
    properties,
    text,
    truth,
)

MAX_CHOICES: Final = 50

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_TRUTHS: Final = ("true", "false")


class InputKind(StrEnum):
    """What a manual input may be."""

    TEXT = "text"
    CHOICE = "choice"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One manual input, as the workflow file describes it."""

    name: str
    type: InputKind = InputKind.TEXT
    default: str = ""
    required: bool = False
    """A request by hand has to give it."""
    description: str = ""
    choices: tuple[str, ...] = ()
    """The values that it may have; empty: any."""

    @property
    def variable(self) -> str:
        """The variable of the jobs, which no `env` and no secret can be called: `SOLSTICE_INPUT_VERSION`."""
        return f"SOLSTICE_INPUT_{self.name.upper().replace('-', '_')}"

    def problem(self, value: str) -> str:
        """Return what is wrong with a value; empty: nothing."""
        if not self.choices or value in self.choices:
            return ""
        shown = f"{value[:40]!r}{did_you_mean(value, self.choices)}"
        return f"the input {self.name!r} is one of {', '.join(self.choices)}, not {shown}"


class InvalidInputs(ValueError):
    """The request gives what the workflow does not take; the message is one sentence."""


NO_INPUTS: Final[Mapping[str, InputSpec]] = MappingProxyType({})


def read_input(node: KdlNode, known: Mapping[str, InputSpec]) -> InputSpec:
    """Read one node `input`; `known` are those before it."""
    rule = 'an input has one name: input "version" default="1.0"'
    expect_arguments(node, 1, rule)
    name = text(node.arguments[0], "the name of an input")
    position = node.arguments[0].position
    if not _NAME.fullmatch(name):
        raise position.problem(
            f"{name[:80]!r} cannot name an input: at most 63 letters, digits, '_' and '-', first a letter"
        )
    values = properties(node, ("type", "default", "required", "description"))
    kind = InputKind(one_of(values["type"], "type", tuple(InputKind))) if "type" in values else InputKind.TEXT
    choices = _choices(node, kind)
    spec = InputSpec(
        name=name,
        type=kind,
        default=_default(values.get("default"), kind, choices),
        required=truth(values["required"], "required is #true or #false") if "required" in values else False,
        description=line(values["description"], "description") if "description" in values else "",
        choices=_TRUTHS if kind is InputKind.BOOLEAN else choices,
    )
    if any(each.variable == spec.variable for each in known.values()):
        raise position.problem(f"there is an input of that name already: both are {spec.variable}")
    if spec.required and "default" in values:
        raise values["default"].position.problem("a required input has no default: leave out one of the two")
    if len(known) == MAX_INPUTS:
        raise node.position.problem(f"a workflow may have {MAX_INPUTS} inputs, no more")
    return spec


def given_values(
    specs: Mapping[str, InputSpec], given: Mapping[str, str], *, by_hand: bool
) -> Mapping[str, str]:
    """Return the value of every input. Raises InvalidInputs.

    `by_hand`: a person or a program asked for this run, and must give what is required. Other events have no inputs, and
    find the defaults.
    """
    for name, value in given.items():
        if name not in specs:
            known = f"; known: {', '.join(specs)}" if specs else ""
            raise InvalidInputs(
                f"the request gives the input {name!r}, which this workflow does not have{did_you_mean(name, specs)}{known}"
            )
        if problem := specs[name].problem(value):
            raise InvalidInputs(problem)
    if by_hand and (missing := [name for name, spec in specs.items() if spec.required and name not in given]):
        raise InvalidInputs(
            f"the request does not give the required input {', '.join(map(repr, missing))}: "
            f"solstice enqueue --input {missing[0]}=..."
        )
    return {name: given.get(name, spec.default) for name, spec in specs.items()}


def _choices(node: KdlNode, kind: InputKind) -> tuple[str, ...]:
    found: list[str] = []
    for child in children(node, ("choices",), "in an input", once=("choices",)):
        properties(child, ())
        expect_childless(child)
        if kind is not InputKind.CHOICE:
            raise child.position.problem('choices belong to an input with type="choice"')
        for argument in child.arguments:
            choice = line(argument, "a choice")
            if choice in found:
                raise argument.position.problem(f"{choice!r} is a choice already; once is enough")
            found.append(choice)
    if kind is InputKind.CHOICE and not found:
        raise node.position.problem('an input with type="choice" has choices: choices "staging" "production"')
    if len(found) > MAX_CHOICES:
        raise node.position.problem(f"an input may have {MAX_CHOICES} choices, no more")
    return tuple(found)


def _default(value: KdlValue | None, kind: InputKind, choices: tuple[str, ...]) -> str:
    if kind is InputKind.BOOLEAN:
        is_true = value is not None and truth(value, "the default of a boolean input is #true or #false")
        return "true" if is_true else "false"
    if value is None:
        return ""
    written = text(value, "the default of an input")
    if len(written) > MAX_INPUT_CHARACTERS:
        raise value.position.problem(f"an input has at most {MAX_INPUT_CHARACTERS} characters")
    if choices and written not in choices:
        raise value.position.problem(
            f"the default is one of the choices, not {written[:40]!r}{did_you_mean(written, choices)}"
        )
    return written
