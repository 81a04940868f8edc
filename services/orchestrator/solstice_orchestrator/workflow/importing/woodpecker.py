"""Translate a workflow of Woodpecker: its steps become one job, since they share files. Pure.

Reference: woodpecker-ci.org/docs/usage/workflow-syntax.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.translation import Translation, quoted, with_variables, word

_WORKFLOW: Final = ("steps", "pipeline", "services", "matrix", "when", "labels", "variables")
_STEP: Final = ("name", "image", "commands", "environment", "when", "failure", "pull")
_SERVICE: Final = ("name", "image", "environment", "ports")
_EVENTS: Final[Mapping[str, str]] = {
    "push": "event == 'push'",
    "pull_request": "event == 'change-request'",
    "tag": "event == 'tag'",
    "cron": "event == 'schedule'",
    "manual": "event == 'manual'",
    "release": "event == 'release'",
}
_NONE: Final = YamlValue(line=1)


def translate(file: YamlValue) -> Translation:
    """Return the translation of one workflow."""
    made = Translation()
    made.rest(file, _WORKFLOW, "of a workflow", 0)
    if "labels" in file.fields:
        made.note(file.fields["labels"].line, "labels have no counterpart: choose runs-on", 0)
    condition = _condition(made, file.fields.get("when"))
    head = 'job "workflow"' + (f" if={quoted(condition)}" if condition else "")
    made.write(0, f"{head} {{")
    axes = _matrix(made, file.fields.get("matrix"))
    steps = _named(file.fields.get("steps") or file.fields.get("pipeline") or _NONE)
    image = next((_text(step, "image", axes) for _, step in steps if "commands" in step.fields), "")
    if image:
        made.write(1, f"image {quoted(image)}")
    for name, service in _named(file.fields.get("services", _NONE)):
        _service(made, name, service, axes)
    for name, step in steps:
        _step(made, name, step, image, axes)
    if not steps:
        made.refused_step(1, file.line, "nothing", "there are no steps")
    made.write(0, "}")
    return made


def _named(value: YamlValue) -> Sequence[tuple[str, YamlValue]]:
    if value.fields:
        return list(value.fields.items())
    return [
        (each.fields["name"].text if "name" in each.fields else f"step {number}", each)
        for number, each in enumerate(value.items, 1)
    ]


def _text(value: YamlValue, name: str, axes: Sequence[str]) -> str:
    return _filled(value.fields.get(name, _NONE).text, axes)


def _filled(text: str, axes: Sequence[str]) -> str:
    """Put the places of our matrix in those of theirs, which are replaced everywhere."""
    for axis in axes:
        text = text.replace(f"${{{axis}}}", f"{{matrix.{axis}}}")
    return text


def _matrix(made: Translation, matrix: YamlValue | None) -> Sequence[str]:
    if matrix is None:
        return ()
    lines: list[str] = []
    axes = [name for name in matrix.fields if name != "include"]
    for name in axes:
        values = [each.text for each in matrix.fields[name].listed]
        lines.append(" ".join([word(name), *map(quoted, dict.fromkeys(values))]))
    for each in matrix.fields.get("include", _NONE).items:
        axes = axes or list(each.fields)
        if set(each.fields) != set(axes):
            made.note(each.line, "this combination of the matrix has no counterpart", 1)
            continue
        pairs = [f"{word(name)}={quoted(value.text)}" for name, value in each.fields.items()]
        lines.append(" ".join(["include", *pairs]))
    if lines:
        made.write(1, "matrix {")
        for line in lines:
            made.write(2, line)
        made.write(1, "}")
    return axes


def _service(made: Translation, name: str, service: YamlValue, axes: Sequence[str]) -> None:
    made.rest(service, _SERVICE, "of a service", 1)
    host = re.sub(r"[^a-z0-9-]", "-", name.lower())
    made.write(1, f"service {quoted(host)} image={quoted(_text(service, 'image', axes))} {{")
    values, secrets = _environment(made, service, axes)
    for secret in secrets:
        made.note(service.line, f"a service has no secrets: {secret} is not set", 2)
    made.env(2, values)
    port = next((each.text for each in service.fields.get("ports", _NONE).items), "")
    if port.isdecimal():
        made.write(2, f"port {port}")
    made.write(1, "}")


def _environment(
    made: Translation, step: YamlValue, axes: Sequence[str]
) -> tuple[Mapping[str, str], Sequence[str]]:
    environment = step.fields.get("environment", _NONE)
    pairs = dict(environment.fields)
    for each in environment.items:
        name, _, text = each.text.partition("=")
        pairs[name] = YamlValue(line=each.line, text=text, is_text=True)
    values: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in pairs.items():
        secret = value.fields.get("from_secret")
        if secret is not None and secret.text.upper() == name.upper():
            secrets.append(name)
        elif (
            secret is not None
            or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
            or name.startswith("SOLSTICE_")
        ):
            made.note(
                value.line, f"the variable {name!r} has no counterpart: call the secret as the variable", 1
            )
        else:
            values[name] = _filled(value.text, axes)
    return values, secrets


def _step(made: Translation, name: str, step: YamlValue, image: str, axes: Sequence[str]) -> None:
    made.rest(step, _STEP, "of a step", 1)
    if "commands" not in step.fields:
        made.refused_step(1, step.line, name, "a step of a plugin has no counterpart")
        return
    own = _text(step, "image", axes)
    if own != image:
        made.refused_step(1, step.line, name, f"steps of a job share one image, and this one has {own}")
        return
    values, secrets = _environment(made, step, axes)
    commands = step.fields["commands"]
    run = "\n".join(_filled(each.text, axes) for each in commands.listed)
    properties: list[str] = []
    if condition := _condition(made, step.fields.get("when"), in_step=True):
        properties.append(f"if={quoted(condition)}")
    if (failure := step.fields.get("failure")) is not None:
        if failure.text == "ignore":
            properties.append("continue=#true")
        else:
            made.note(failure.line, f"failure: {failure.text} has no counterpart", 1)
    run = with_variables(made, run, commands.line, [*values, *secrets])
    made.step(1, name, run or "true", properties, env=values, secrets=secrets)


def _condition(made: Translation, when: YamlValue | None, *, in_step: bool = False) -> str:
    if when is None:
        return ""
    parts = [" && ".join(_rule(made, each, in_step=in_step)) for each in when.items or (when,)]
    return " || ".join(f"({part})" if len(parts) > 1 else part for part in parts)


def _rule(made: Translation, rule: YamlValue, *, in_step: bool) -> Iterator[str]:
    for name, value in rule.fields.items():
        listed = [each.text for each in value.listed]
        words: list[str] = []
        if name == "event" and listed and all(each in _EVENTS for each in listed):
            words = [_EVENTS[each] for each in listed]
        elif name == "branch" and listed and all(re.fullmatch(r"[A-Za-z0-9._/*-]+", each) for each in listed):
            # Of a pull request it is the branch that it is to be merged into.
            words = [f"glob({fact}, '{each}')" for each in listed for fact in ("branch", "target_branch")]
        elif name == "status" and in_step and listed and set(listed) <= {"success", "failure"}:
            words = [{"success": "success", "failure": "failed"}[each] for each in listed]
        else:
            made.note(
                value.line, f"when: {name} has no counterpart: it never holds here", 1 if in_step else 0
            )
            words = [f"branch == 'not imported, line {value.line}'"]
        yield f"({' || '.join(words)})" if len(words) > 1 else words[0]
