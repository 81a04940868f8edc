"""Translate steps of GitHub Actions: commands, and the few actions that have a counterpart. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.github_conditions import NoCounterpart, translated
from solstice_orchestrator.workflow.importing.github_values import env_of, filled_text
from solstice_orchestrator.workflow.importing.translation import (
    Translation,
    name_of,
    quoted,
    with_variables,
)

_SHELLS: Final = frozenset({"bash", "sh", "python", "pwsh"})
_STEP: Final = (
    *("id", "name", "if", "uses", "with", "run", "env", "shell", "working-directory", "timeout-minutes"),
    "continue-on-error",
)
MAX_MINUTES: Final = 24 * 60
MAX_LINE: Final = 100
MAX_DAYS: Final = 366
_NONE: Final = YamlValue(line=0)


def write_step(made: Translation, step: YamlValue, number: int, own_variables: set[str]) -> int:
    """Write a step; return how many were written. `own_variables` are those of its job."""
    fields = step.fields
    made.rest(step, _STEP, "of a step", 1)
    name, strange = filled_text(fields["name"].text if "name" in fields else f"step {number}")
    name = re.sub(r"\$\{\{.*?\}\}", "...", name) if strange else name
    if "uses" in fields:
        return _action(made, step, name)
    if "run" not in fields:
        made.refused_step(1, step.line, name, "a step without run has no counterpart")
        return 1
    run, unknown = filled_text(fields["run"].text)
    if unknown:
        made.refused_step(
            1, fields["run"].line, name, f"the command contains {unknown}, which has no counterpart"
        )
        return 1
    env = env_of(made, fields.get("env"), 1)
    if fields.get("shell", _NONE).text not in {"python", "pwsh"}:
        run = with_variables(
            made, run, fields["run"].line, own_variables | set(fields.get("env", _NONE).fields)
        )
    made.step(
        1,
        name,
        run if run.strip() else "true",
        _properties(made, fields),
        env=env.values,
        secrets=env.secrets,
    )
    return 1


def _action(made: Translation, step: YamlValue, name: str) -> int:
    action = step.fields["uses"]
    known = _ACTIONS.get(action.text.partition("@")[0])
    if known and "if" not in step.fields and known(made, step.fields.get("with", YamlValue(line=step.line))):
        return 0
    made.refused_step(1, step.line, name, f"the action {action.text} has no counterpart")
    return 1


def _properties(made: Translation, fields: Mapping[str, YamlValue]) -> Sequence[str]:
    words: list[str] = []
    if "if" in fields:
        words.append(condition_of(made, fields["if"], in_step=True))
    if (going_on := fields.get("continue-on-error")) is not None:
        if going_on.text == "true":
            words.append("continue=#true")
        elif going_on.text != "false":
            made.note(going_on.line, "a computed continue-on-error has no counterpart", 1)
    if "timeout-minutes" in fields:
        words.append(timeout_of(made, fields["timeout-minutes"]))
    words += place_of(made, fields)
    return [word for word in words if word]


def place_of(made: Translation, fields: Mapping[str, YamlValue]) -> Sequence[str]:
    """Return the properties for the directory and the shell."""
    words: list[str] = []
    if directory := fields.get("working-directory"):
        text, unknown = filled_text(directory.text)
        path = text.strip().removeprefix("./").rstrip("/")
        if unknown or path.startswith("/") or ".." in path.split("/") or len(path) > MAX_LINE:
            made.note(directory.line, f"the working directory {directory.text!r} has no counterpart")
            words.append('working-directory="not-imported"')
        elif path not in {"", "."}:
            words.append(f"working-directory={quoted(path)}")
    if shell := fields.get("shell"):
        if shell.text in _SHELLS:
            words.append(f"shell={quoted(shell.text)}")
        else:
            made.note(shell.line, f"the shell {shell.text!r} has no counterpart")
            words.append('working-directory="not-imported"')
    return words


def timeout_of(made: Translation, value: YamlValue) -> str:
    """Return the property for a time limit in minutes."""
    if re.fullmatch(r"[1-9][0-9]{0,3}", value.text) and int(value.text) <= MAX_MINUTES:
        return f'timeout="{value.text}m"'
    made.note(value.line, f"the timeout {value.text!r} has no counterpart")
    return ""


def condition_of(made: Translation, value: YamlValue, *, in_step: bool) -> str:
    """Return the property for a condition; one without a counterpart never holds."""
    word = value.text.strip().removeprefix("${{").removesuffix("}}").strip()
    first = ""
    if not in_step:
        if word in {"always()", "success()"}:
            return f"if={quoted(word[:-2])}"
        if always := re.match(r"always\(\)\s*&&\s*", word):
            first, word = "always && ", word[always.end() :]
    try:
        text = translated(word, in_step=in_step)
    except NoCounterpart as error:
        made.note(
            value.line, f"the condition {value.text!r} has no counterpart ({error}): it never holds here"
        )
        return f"if={quoted(f'branch == {chr(39)}not imported, line {value.line}{chr(39)}')}"
    text = re.sub(r"result\('([^']*)'\)", lambda match: f"result('{name_of(match[1])}')", text)
    return f"if={quoted(first + text)}"


def _checkout(made: Translation, options: YamlValue) -> bool:
    made.rest(
        options, ("fetch-depth", "submodules", "lfs", "fetch-tags", "persist-credentials"), "of checkout", 1
    )
    words: list[str] = []
    values = {name: value.text for name, value in options.fields.items()}
    if values.get("fetch-depth", "").isdecimal():
        words.append(f"depth={int(values['fetch-depth'])}")
    if values.get("fetch-tags") == "true":
        words.append("tags=#true")
    if values.get("submodules") in {"true", "recursive"}:
        words.append("submodules=" + ("#true" if values["submodules"] == "true" else '"recursive"'))
    if values.get("lfs") == "true":
        words.append("lfs=#true")
    if words:
        made.write(1, " ".join(["checkout", *words]))
    return not {"repository", "ref", "path"} & set(values)


def _upload(made: Translation, options: YamlValue) -> bool:
    values = {name: value.text for name, value in options.fields.items()}
    path = values.get("path", "").strip().removeprefix("./").rstrip("/")
    name, unknown = filled_text(values.get("name", "artifact"))
    is_plain = path and "\n" not in path and not path.startswith(("/", "~", "!")) and "${{" not in path
    if unknown or not is_plain or ".." in path.split("/"):
        return False
    made.rest(options, ("name", "path", "retention-days"), "of upload-artifact", 1)
    days = values.get("retention-days", "")
    keeps = f' retention="{int(days)}d"' if days.isdecimal() and 0 < int(days) <= MAX_DAYS else ""
    made.write(1, f"artifact {quoted(name_of(name) if '{' not in name else name)} path={quoted(path)}{keeps}")
    return True


_ACTIONS: Final[Mapping[str, Callable[[Translation, YamlValue], bool]]] = {
    "actions/checkout": _checkout,
    "actions/upload-artifact": _upload,
}
