"""Read the nodes `output` of a job, and name the variables that they become. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from solstice_orchestrator.domain.handing_spec import FILE_PLACE, NeededOutput, OutputSpec
from solstice_orchestrator.workflow.env_node import Fill
from solstice_orchestrator.workflow.job_files.artifact_node import problem_of_path
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import expect_childless, identifier, properties, text

MAX_OUTPUTS: Final = 50
"""Outputs of one job."""
MAX_NAME: Final = 64
MAX_NEEDED: Final = 1000
"""Outputs that one job gets, each of a matrix counted."""
MAX_TEXT_BYTES: Final = 4096
"""Of the text in the file; what it stands for may be longer."""
PREFIX: Final = "SOLSTICE_OUTPUT_"
_RULE: Final = 'an output has a name, and maybe a text: output "version" "{file:VERSION}"'


class OutputJob(Protocol):
    """A job that has outputs."""

    @property
    def name(self) -> str: ...

    @property
    def outputs(self) -> Sequence[OutputSpec]: ...


def variable_of(job: str, name: str) -> str:
    """Return the variable that an output becomes, for example `SOLSTICE_OUTPUT_BUILD_VERSION`."""
    return PREFIX + re.sub(r"[^A-Za-z0-9]", "_", f"{job}_{name}").upper()


def read_outputs(node: KdlNode, fill: Fill) -> tuple[OutputSpec, ...]:
    """Read the outputs of a `job` node."""
    outputs: dict[str, OutputSpec] = {}
    for child in node.children:
        if child.name != "output":
            continue
        output, position = _output(child, fill)
        variable = variable_of("", output.name)
        if variable in outputs:
            raise position.problem(
                f"the output {output.name!r} would be the same variable as {outputs[variable].name!r}; call it otherwise"
            )
        if len(outputs) == MAX_OUTPUTS:
            raise child.position.problem(f"a job may have {MAX_OUTPUTS} outputs, no more")
        outputs[variable] = output
    return tuple(outputs.values())


def _output(node: KdlNode, fill: Fill) -> tuple[OutputSpec, SourcePosition]:
    expect_childless(node)
    values = properties(node, ("default",))
    if not node.arguments or len(node.arguments) > len(("name", "text")):
        raise node.position.problem(_RULE)
    written, *rest = node.arguments
    name = identifier(written, "the name of an output", MAX_NAME, fill=fill)
    if rest and "default" in values:
        raise values["default"].position.problem(
            "an output with a text needs no default; without a text, its steps write it"
        )
    default = _short(values["default"], "default", fill) if "default" in values else None
    return OutputSpec(
        name=name, text=_text(rest[0], fill) if rest else None, default=default
    ), written.position


def _text(value: KdlValue, fill: Fill) -> str:
    written = _short(value, "the text of an output", fill)
    rest = FILE_PLACE.sub("", written)
    if "{" in rest or "}" in rest:
        raise value.position.problem(
            "of braces, the text of an output has {file:PATH} and, in a job with a matrix, {matrix.AXIS}"
        )
    for path in FILE_PLACE.findall(written):
        if problem := problem_of_path(path):
            raise value.position.problem(problem)
    return written


def _short(value: KdlValue, what: str, fill: Fill) -> str:
    written = fill(text(value, what), value.position)
    if len(written.encode()) > MAX_TEXT_BYTES:
        raise value.position.problem(f"{what} has at most {MAX_TEXT_BYTES} bytes here")
    return written


def needed_outputs(
    needs: Mapping[str, Sequence[OutputJob]], position: SourcePosition
) -> tuple[NeededOutput, ...]:
    """Return all outputs of needed jobs, each with a variable that no other one has.

    `position` is that of the job that gets them.
    """
    found: dict[str, NeededOutput] = {}
    for output in _of_jobs(needs):
        if before := found.get(output.variable):
            raise position.problem(
                f"the output {output.name!r} of {output.job!r} and {before.name!r} of {before.job!r} would both be the "
                f"variable {output.variable}; call one of them otherwise"
            )
        if len(found) == MAX_NEEDED:
            raise position.problem(
                f"the jobs that this job needs have more than {MAX_NEEDED} outputs together"
            )
        found[output.variable] = output
    return tuple(found.values())


def _of_jobs(needs: Mapping[str, Sequence[OutputJob]]) -> Iterator[NeededOutput]:
    for jobs in needs.values():
        for job in jobs:
            for output in job.outputs:
                yield NeededOutput(
                    job=job.name, name=output.name, variable=variable_of(job.name, output.name)
                )
