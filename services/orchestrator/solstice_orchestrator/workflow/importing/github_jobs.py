"""Translate jobs of GitHub Actions. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.github_steps import (
    condition_of,
    place_of,
    timeout_of,
    write_step,
)
from solstice_orchestrator.workflow.importing.github_values import env_of, filled_text, write_concurrency
from solstice_orchestrator.workflow.importing.translation import Translation, name_of, quoted, word

_MACHINES: Final = {"ubuntu": "linux", "windows": "windows", "macos": "macos"}
_JOB: Final = (
    *(
        "name",
        "needs",
        "if",
        "runs-on",
        "strategy",
        "env",
        "steps",
        "timeout-minutes",
        "container",
        "services",
    ),
    *("concurrency", "defaults"),
)


class GithubJob:
    """Writes one job."""

    def __init__(
        self, made: Translation, file: YamlValue, names: Mapping[str, str], secrets: Sequence[str]
    ) -> None:
        self._made, self._file, self._names, self._secrets = made, file, names, list(secrets)
        self._own_variables: set[str] = set(file.fields.get("env", YamlValue(line=1)).fields)

    def write(self, name: str, job: YamlValue) -> None:
        """Write the job of this name."""
        made = self._made
        properties = [f"job {quoted(self._names[name])}"]
        self._own_variables |= set(job.fields.get("env", YamlValue(line=1)).fields)
        properties += self._properties(job)
        made.write(0, " ".join(properties) + " {")
        # Findings about properties stand before the job.
        made.rest(job, _JOB, "of a job", 1)
        if job.fields.get("needs"):
            needs = [self._names.get(each.text, name_of(each.text)) for each in job.fields["needs"].listed]
            made.write(1, " ".join(["needs", *map(quoted, needs)]))
        self._matrix(job.fields.get("strategy"))
        if "concurrency" in job.fields:
            write_concurrency(made, job.fields["concurrency"], 1)
        env = env_of(made, job.fields.get("env"), 1)
        made.env(1, env.values)
        secrets = [*dict.fromkeys([*self._secrets, *env.secrets])]
        if secrets:
            made.write(1, " ".join(["secret", *map(quoted, secrets)]))
        self._container(job)
        self._steps(job)
        made.write(0, "}")
        made.write(0, "")

    def _properties(self, job: YamlValue) -> Sequence[str]:
        words = [self._runs_on(job)]
        if minutes := job.fields.get("timeout-minutes"):
            words.append(timeout_of(self._made, minutes))
        if "if" in job.fields:
            words.append(condition_of(self._made, job.fields["if"], in_step=False))
        defaults = [self._file.fields.get("defaults"), job.fields.get("defaults")]
        run: dict[str, YamlValue] = {}
        for each in defaults:
            if each:
                self._made.rest(each, ("run",), "of defaults", 0)
                run |= each.fields.get("run", YamlValue(line=1)).fields
        words += place_of(self._made, run)
        return [word for word in words if word]

    def _runs_on(self, job: YamlValue) -> str:
        value = job.fields.get("runs-on")
        if value is None:
            return ""
        labels = [each.text for each in value.listed]
        text, unknown = filled_text(labels[-1] if labels else "")
        system = _MACHINES.get(text.partition("-")[0])
        if system:
            self._made.note(value.line, f"runs-on: {text} became the label {system}; use one of your workers")
            return f"runs-on={quoted(system)}"
        if unknown or not re.fullmatch(r"(?:[A-Za-z0-9._-]|\{matrix\.[A-Za-z0-9_-]+\})+", text):
            self._made.note(value.line, "runs-on has no counterpart: choose a label")
            return ""
        self._made.note(value.line, f"runs-on: the label {text} has to be one of your workers")
        return f"runs-on={quoted(text)}"

    def _matrix(self, strategy: YamlValue | None) -> None:
        if strategy is None:
            return
        made = self._made
        made.rest(strategy, ("matrix", "fail-fast"), "of a strategy", 1)
        matrix = strategy.fields.get("matrix")
        if matrix is None or not matrix.fields:
            if matrix is not None:
                made.note(matrix.line, "a computed matrix has no counterpart", 1)
            return
        axes = {name: value for name, value in matrix.fields.items() if name not in {"include", "exclude"}}
        lines: list[str] = []
        for name, value in axes.items():
            values = list(dict.fromkeys(each.text for each in value.items if each.is_text and each.text))
            if (
                not values
                or len(values) < len(value.items)
                or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,31}", name)
            ):
                made.note(value.line, f"the axis {name!r} of the matrix has no counterpart", 1)
            if values:
                lines.append(" ".join([word(name), *map(quoted, values)]))
        lines += self._rules(matrix, set(axes))
        if not lines:
            return
        made.write(1, "matrix {")
        for line in lines:
            made.write(2, line)
        made.write(1, "}")

    def _rules(self, matrix: YamlValue, axes: set[str]) -> Sequence[str]:
        lines: list[str] = []
        seen: list[dict[str, str]] = []
        for rule in ("exclude", "include"):
            for each in matrix.fields.get(rule, YamlValue(line=1)).items:
                names = set(each.fields)
                values = {name: value.text for name, value in each.fields.items()}
                is_known = (names == axes or not axes) if rule == "include" else names <= axes
                if (
                    not names
                    or not is_known
                    or values in seen
                    or not all(value.text for value in each.fields.values())
                ):
                    self._made.note(each.line, f"this {rule} of the matrix has no counterpart", 1)
                    continue
                if rule == "include":
                    # Without axes, the first combination names those of all.
                    axes, seen = axes or names, [*seen, values]
                pairs = [f"{word(name)}={quoted(value.text)}" for name, value in each.fields.items()]
                lines.append(" ".join([rule, *pairs]))
        return lines

    def _container(self, job: YamlValue) -> None:
        made, container = self._made, job.fields.get("container")
        if container is not None:
            made.rest(container, ("image", "env"), "of a container", 1)
            image, unknown = filled_text(container.fields.get("image", container).text)
            if unknown or not image:
                made.note(container.line, "the image of the container has no counterpart", 1)
            else:
                made.write(1, f"image {quoted(image)}")
            if container.fields.get("env"):
                made.note(
                    container.line, "variables of a container have no counterpart: give them to the job", 1
                )
        for name, service in job.fields.get("services", YamlValue(line=1)).fields.items():
            made.rest(service, ("image", "env", "ports"), "of a service", 1)
            image, unknown = filled_text(service.fields.get("image", service).text)
            host = re.sub(r"[^a-z0-9-]", "-", name.lower())
            if unknown or not image:
                made.note(service.line, f"the service {name!r} has no counterpart", 1)
                continue
            made.write(1, f"service {quoted(host)} image={quoted(image)} {{")
            made.env(2, env_of(made, service.fields.get("env"), 2).values)
            for port in service.fields.get("ports", YamlValue(line=1)).items:
                number = port.text.rpartition(":")[2]
                if number.isdecimal() and port.text.split(":")[0] == number:
                    made.write(2, f"port {number}")
                    break
                made.note(port.line, f"the port {port.text!r} has no counterpart", 2)
            made.write(1, "}")

    def _steps(self, job: YamlValue) -> None:
        steps = job.fields.get("steps", YamlValue(line=job.line)).items
        if "uses" in job.fields:
            self._made.refused_step(
                1, job.line, "reusable workflow", "a reusable workflow has no counterpart"
            )
            return
        written = 0
        for number, step in enumerate(steps, 1):
            written += write_step(self._made, step, number, self._own_variables)
        if not written:
            self._made.refused_step(1, job.line, "nothing", "this job has no step that does something")
