"""Translate a workflow of GitHub Actions. Pure.

Reference: docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax.
"""

import re
from collections.abc import Sequence
from typing import Final

from solstice_common.values.globs import InvalidGlob, compiled
from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.github_jobs import GithubJob
from solstice_orchestrator.workflow.importing.github_values import env_of, write_concurrency
from solstice_orchestrator.workflow.importing.translation import (
    Translation,
    name_of,
    quoted,
)

_PUSH: Final = ("branches", "tags", "paths", "paths-ignore")


def translate(file: YamlValue) -> Translation:
    """Return the translation of one workflow."""
    made = Translation()
    made.rest(file, ("name", "run-name", "on", "env", "defaults", "jobs", "concurrency"), "of a workflow", 0)
    if "on" in file.fields:
        _on(made, file.fields["on"])
    if "concurrency" in file.fields:
        write_concurrency(made, file.fields["concurrency"], 0)
    env = env_of(made, file.fields.get("env"), 0)
    if env.values or env.secrets:
        made.write(0, "defaults {")
        made.env(1, env.values)
        made.write(0, "}")
        made.write(0, "")
    jobs = file.fields.get("jobs", YamlValue(line=1))
    names = {name: name_of(name) for name in jobs.fields}
    for name, job in jobs.fields.items():
        GithubJob(made, file, names, env.secrets).write(name, job)
    if not jobs.fields:
        made.note(jobs.line, "there are no jobs", 0)
    return made


def _on(made: Translation, on: YamlValue) -> None:
    events = on.fields or {each.text: YamlValue(line=each.line) for each in on.listed}
    if "workflow_dispatch" in events:
        _inputs(made, events["workflow_dispatch"])
    lines: list[str] = []
    for name, event in events.items():
        match name:
            case "push":
                lines += _push(made, event)
            case "pull_request":
                made.rest(event, ("branches", "paths", "paths-ignore"), "of pull_request")
                lines += _event(made, "change-request", event, "branches", with_paths=True)
            case "merge_group" | "release":
                made.rest(event, (), f"of {name}")
                lines.append(name.replace("_", "-"))
            case "schedule":
                made.note(event.line, "schedules are not in the file: solstice schedules add")
                lines.append("schedule")
            case "workflow_dispatch":
                pass
            case _:
                made.note(event.line, f"the event {name!r} has no counterpart")
    if not lines:
        # Only what a person asks for; `on` has to name an event.
        lines.append("schedule")
    made.write(0, "on {")
    for line in lines:
        made.write(1, line)
    made.write(0, "}")
    made.write(0, "")


def _push(made: Translation, event: YamlValue) -> Sequence[str]:
    made.rest(event, _PUSH, "of push")
    has_branches, has_tags = "branches" in event.fields, "tags" in event.fields
    lines: list[str] = []
    if has_branches or not has_tags:
        lines += _event(made, "push", event, "branches", with_paths=True)
    if has_tags or not has_branches:
        lines += _event(made, "tag", event, "tags", with_paths=False)
    return lines


def _event(made: Translation, name: str, event: YamlValue, names: str, *, with_paths: bool) -> Sequence[str]:
    patterns = _patterns(made, event.fields.get(names))
    if names in event.fields and not patterns:
        return []
    head = " ".join([name, *map(quoted, patterns)])
    inner = [
        " ".join(["    " + own, *map(quoted, found)])
        for foreign, own in (("paths", "paths"), ("paths-ignore", "ignore-paths"))
        if with_paths and (found := _patterns(made, event.fields.get(foreign)))
    ]
    return [head + " {", *inner, "}"] if inner else [head]


def _patterns(made: Translation, value: YamlValue | None) -> Sequence[str]:
    found: list[str] = []
    for each in value.listed if value else ():
        pattern = each.text
        parts = pattern.split("/")
        strange = pattern.startswith("!") or re.search(r"[+\\]|\?", pattern)
        try:
            compiled(pattern)
        except InvalidGlob:
            strange = True
        if strange or any("**" in part and part != "**" for part in parts):
            made.note(each.line, f"the pattern {pattern!r} has no counterpart")
        else:
            found.append(pattern)
    return found


def _inputs(made: Translation, event: YamlValue) -> None:
    made.rest(event, ("inputs",), "of workflow_dispatch", 0)
    for name, value in event.fields.get("inputs", YamlValue(line=event.line)).fields.items():
        made.rest(value, ("description", "required", "default", "type", "options"), "of an input", 0)
        kind = value.fields["type"].text if "type" in value.fields else "string"
        default = value.fields["default"].text if "default" in value.fields else None
        choices = [each.text for each in value.fields.get("options", YamlValue(line=value.line)).listed]
        if kind not in {"string", "choice", "boolean"} or (kind == "choice" and not choices):
            made.note(value.line, f"the input {name!r} of the type {kind!r} becomes text", 0)
            kind = "string"
        words = [f"input {quoted(name)}"]
        words += [f"type={quoted(kind)}"] if kind != "string" else []
        if kind == "boolean":
            words.append(f"default=#{'true' if default == 'true' else 'false'}")
        elif default is not None and (kind != "choice" or default in choices):
            words.append(f"default={quoted(default)}")
        elif value.fields.get("required", YamlValue(line=0)).text == "true":
            words.append("required=#true")
        if description := value.fields.get("description", YamlValue(line=0)).text:
            words.append(f"description={quoted(' '.join(description.split())[:100])}")
        made.write(0, " ".join(words) + (" {" if kind == "choice" else ""))
        if kind == "choice":
            made.write(1, " ".join(["choices", *map(quoted, choices)]))
            made.write(0, "}")
