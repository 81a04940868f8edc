"""Read the nodes `artifact` and `report` of a job: files that it leaves. Pure."""

import re
from collections.abc import Collection
from typing import Final

from solstice_common.values.globs import InvalidGlob, meaningful
from solstice_orchestrator.domain.jobs import ArtifactSpec, ReportSpec
from solstice_orchestrator.workflow.env_node import Fill
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue
from solstice_orchestrator.workflow.shape import (
    expect_arguments,
    expect_childless,
    identifier,
    properties,
    text,
    truth,
)

MAX_NAME: Final = 100
MAX_ARTIFACTS: Final = 20
"""Artifacts of one job."""
MAX_PATH: Final = 1024
MAX_DAYS: Final = 366
MAX_REPORTS: Final = 10
"""Nodes `report` of one job."""
JUNIT: Final = "junit"
_RETENTION: Final = re.compile(r"([1-9][0-9]{0,4})([dh])")
_SECONDS: Final = {"d": 86400.0, "h": 3600.0}


def read_artifacts(node: KdlNode, fill: Fill) -> tuple[ArtifactSpec, ...]:
    """Read the artifacts of a `job` node."""
    artifacts: dict[str, ArtifactSpec] = {}
    for child in node.children:
        if child.name == "artifact":
            artifact = _artifact(child, artifacts, fill)
            artifacts[artifact.name] = artifact
    return tuple(artifacts.values())


def _artifact(node: KdlNode, known: Collection[str], fill: Fill) -> ArtifactSpec:
    expect_arguments(node, 1, 'an artifact has one name: artifact "dist" path="dist/**"')
    expect_childless(node)
    values = properties(node, ("path", "retention"))
    name = identifier(node.arguments[0], "the name of an artifact", MAX_NAME, fill=fill)
    if name in known:
        raise node.arguments[0].position.problem(
            f"the job has an artifact {name!r} already; names are unique"
        )
    if len(known) == MAX_ARTIFACTS:
        raise node.position.problem(f"a job may have {MAX_ARTIFACTS} artifacts, no more")
    if "path" not in values:
        raise node.position.problem('an artifact needs path="...", the files that it is made of')
    return ArtifactSpec(
        name=name,
        path=_path(values["path"], fill),
        retention_seconds=_retention(values["retention"]) if "retention" in values else None,
    )


def read_reports(node: KdlNode, fill: Fill) -> tuple[ReportSpec, ...]:
    """Read the test reports of a `job` node."""
    reports: list[ReportSpec] = []
    for child in node.children:
        if child.name == "report":
            if len(reports) == MAX_REPORTS:
                raise child.position.problem(f"a job may have {MAX_REPORTS} nodes 'report', no more")
            report = _report(child, fill)
            if any(each.path == report.path for each in reports):
                raise child.arguments[1].position.problem("the job has a report of these files already")
            reports.append(report)
    return tuple(reports)


def _report(node: KdlNode, fill: Fill) -> ReportSpec:
    expect_arguments(node, 2, 'a report has a format and its files: report "junit" "build/**/*.xml"')
    expect_childless(node)
    values = properties(node, ("required",))
    name = text(node.arguments[0], "the format of a report")
    if name != JUNIT:
        raise node.arguments[0].position.problem(
            f'reports are in the format "{JUNIT}", which most tools can write, and not {name[:40]!r}'
        )
    return ReportSpec(
        format=JUNIT,
        path=_path(node.arguments[1], fill),
        required="required" in values and truth(values["required"], "required is #true or #false"),
    )


def _path(value: KdlValue, fill: Fill) -> str:
    path = fill(text(value, "path"), value.position)
    if problem := problem_of_path(path):
        raise value.position.problem(problem)
    try:
        return meaningful(path)
    except InvalidGlob as error:
        raise value.position.problem(str(error)) from None


def _retention(value: KdlValue) -> float:
    match = _RETENTION.fullmatch(text(value, "retention"))
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_DAYS * _SECONDS["d"]:
        raise value.position.problem(
            f'retention is days or hours, at most {MAX_DAYS} days: retention="14d" or retention="12h"'
        )
    return seconds


def problem_of_path(path: str) -> str | None:
    """Return what is wrong with a pattern; None: it stays in the workspace."""
    if not path or len(path) > MAX_PATH:
        return f"path has between 1 and {MAX_PATH} characters"
    if path.startswith("/"):
        return 'path begins in the workspace: path="dist/**", without a / at its beginning'
    if any(part in {"", ".", ".."} for part in path.split("/")):
        return (
            f"{path[:80]!r} has a part that is empty, '.' or '..'; write it as dist/** or build/report.html"
        )
    return None
