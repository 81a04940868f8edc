"""Translate a pipeline of GitLab CI. Pure.

Reference: docs.gitlab.com/ci/yaml.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.translation import (
    Translation,
    name_of,
    quoted,
    with_variables,
)

_GLOBAL: Final = ("stages", "default", "image", "services", "variables", "before_script", "after_script")
_DEFAULT: Final = ("image", "services", "before_script", "after_script")
_JOB: Final = (
    *(
        "script",
        "stage",
        "image",
        "services",
        "variables",
        "before_script",
        "after_script",
        "needs",
        "artifacts",
    ),
    *("rules", "only", "timeout", "retry", "allow_failure", "parallel", "extends", "tags", "when"),
)
_STAGES: Final = (".pre", "build", "test", "deploy", ".post")
_NONE: Final = YamlValue(line=1)
_RULES: Final[Mapping[str, str]] = {
    "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH": "branch == default_branch",
    "$CI_COMMIT_TAG": "event == 'tag'",
    "$CI_COMMIT_BRANCH": "event == 'push'",
    "$CI_MERGE_REQUEST_IID": "event == 'change-request'",
}
_SOURCES: Final[Mapping[str, str]] = {
    "merge_request_event": "event == 'change-request'",
    "push": "(event == 'push' || event == 'tag')",
    "schedule": "event == 'schedule'",
    "web": "event == 'manual'",
}
MAX_EXTENDS: Final = 10


def translate(file: YamlValue) -> Translation:
    """Return the translation of one pipeline."""
    made = Translation()
    jobs: dict[str, YamlValue] = {}
    for name, value in file.fields.items():
        if name in {"include", "workflow", "pages"} or (name not in _GLOBAL and not value.fields):
            made.note(value.line, f"{name!r} at the top has no counterpart", 0)
        elif name not in _GLOBAL:
            jobs[name] = value
    default = dict(file.fields.get("default", _NONE).fields)
    made.rest(file.fields.get("default", _NONE), _DEFAULT, "of default", 0)
    default |= {name: value for name, value in file.fields.items() if name in _DEFAULT}
    values = _variables(made, file.fields.get("variables"), 0)
    if values:
        made.write(0, "defaults {")
        made.env(1, values)
        made.write(0, "}")
        made.write(0, "")
    whole = {name: _extended(made, job, jobs) for name, job in jobs.items() if not name.startswith(".")}
    whole = {name: replace(job, fields={**default, **job.fields}) for name, job in whole.items()}
    pipeline = _Pipeline(made, file, whole, [*values])
    for name, job in whole.items():
        pipeline.write(name, job)
    if not whole:
        made.note(file.line, "there are no jobs", 0)
    return made


def _variables(made: Translation, value: YamlValue | None, depth: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, each in value.fields.items() if value else ():
        text = each.fields.get("value", each).text
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.startswith("SOLSTICE_") or "$" in text:
            made.note(each.line, f"the variable {name!r} is not set: it has no counterpart", depth)
        else:
            found[name] = text
    return found


def _extended(made: Translation, job: YamlValue, jobs: Mapping[str, YamlValue], depth: int = 0) -> YamlValue:
    """Return the job with what it extends; its own fields win, and variables are joined."""
    fields: dict[str, YamlValue] = {}
    for each in job.fields.get("extends", _NONE).listed:
        if each.text not in jobs or depth > MAX_EXTENDS:
            made.note(each.line, f"extends: {each.text} is not in this file", 0)
            continue
        fields |= _extended(made, jobs[each.text], jobs, depth + 1).fields
    variables = {**fields.get("variables", _NONE).fields, **job.fields.get("variables", _NONE).fields}
    fields |= job.fields
    if variables:
        fields["variables"] = YamlValue(line=job.line, fields=variables)
    return replace(job, fields=fields)


class _Pipeline:
    """Writes the jobs, in the order of stages."""

    def __init__(
        self, made: Translation, file: YamlValue, jobs: Mapping[str, YamlValue], variables: Sequence[str]
    ) -> None:
        self._made, self._jobs, self._variables = made, jobs, variables
        self._stages = [each.text for each in file.fields.get("stages", _NONE).listed] or list(_STAGES)

    def write(self, name: str, job: YamlValue) -> None:
        """Write one job."""
        made, fields = self._made, job.fields
        properties = [f"job {quoted(name_of(name))}", *self._properties(job)]
        made.write(0, " ".join(each for each in properties if each) + " {")
        made.rest(job, _JOB, "of a job", 1)
        needs = self._needs(name, job)
        if needs:
            made.write(1, " ".join(["needs", *map(quoted, needs)]))
        values = _variables(made, fields.get("variables"), 1)
        made.env(1, values)
        self._images(fields)
        self._artifacts(fields.get("artifacts"))
        self._steps(job, [*self._variables, *values])
        made.write(0, "}")
        made.write(0, "")

    def _properties(self, job: YamlValue) -> Sequence[str]:
        made, fields, words = self._made, job.fields, list[str]()
        if tags := fields.get("tags"):
            made.note(tags.line, "tags: choose a label of your workers")
        if timeout := fields.get("timeout"):
            match = re.fullmatch(
                r"(?:([0-9]{1,2})\s*h(?:ours?)?)?\s*(?:([0-9]{1,3})\s*m(?:in(?:utes?)?)?)?", timeout.text
            )
            if match and (match[1] or match[2]) and int(match[1] or 0) * 60 + int(match[2] or 0) <= 24 * 60:
                words.append(f'timeout="{int(match[1] or 0) * 60 + int(match[2] or 0)}m"')
            else:
                made.note(timeout.line, f"the timeout {timeout.text!r} has no counterpart")
        if retry := fields.get("retry"):
            count = retry.fields.get("max", retry).text
            words.append(f"retries={count}") if count in {"0", "1", "2"} else None
            made.rest(retry, ("max",), "of retry")
        if parallel := fields.get("parallel"):
            if parallel.text.isdecimal() and 0 < int(parallel.text) <= 100:  # noqa: PLR2004  some bound
                words.append(f"parallel={int(parallel.text)}")
            else:
                made.note(parallel.line, "a matrix of parallel has no counterpart")
        words.append(self._condition(job))
        return words

    def _condition(self, job: YamlValue) -> str:
        made, fields = self._made, job.fields
        never = f"branch == 'not imported, line {job.line}'"
        parts: list[str] = []
        for rule in fields.get("rules", _NONE).items:
            text = " ".join(rule.fields.get("if", _NONE).text.split())
            ruled = _rule(text)
            if (
                set(rule.fields) - {"if", "when"}
                or not ruled
                or rule.fields.get("when", _NONE).text not in {"", "on_success"}
            ):
                made.note(rule.line, f"the rule {text!r} has no counterpart: the job never runs here")
                return f"if={quoted(never)}"
            parts.append(ruled)
        for each in fields.get("only", _NONE).listed:
            part = {
                "tags": "event == 'tag'",
                "branches": "event == 'push'",
                "merge_requests": "event == 'change-request'",
            }.get(each.text)
            if part is None and re.fullmatch(r"[A-Za-z0-9._-]+", each.text):
                part = f"branch == '{each.text}'"
            if part is None:
                made.note(each.line, f"only: {each.text} has no counterpart: the job never runs here")
                return f"if={quoted(never)}"
            parts.append(part)
        when = fields.get("when", _NONE)
        if fields.get("only", _NONE).fields or when.text not in {"", "on_success", "always"}:
            made.note(job.line, f"when or only of {job.line} has no counterpart: the job never runs here")
            return f"if={quoted(never)}"
        first = "always" if when.text == "always" else ""
        whole = " || ".join(parts)
        return (
            f"if={quoted(' && '.join(filter(None, [first, f'({whole})' if first and whole else whole])))}"
            if first or whole
            else ""
        )

    def _needs(self, name: str, job: YamlValue) -> Sequence[str]:
        if "needs" in job.fields:
            found = [each.fields.get("job", each).text for each in job.fields["needs"].listed]
            for each in job.fields["needs"].items:
                self._made.rest(each, ("job", "artifacts"), "of needs", 1)
            return [name_of(each) for each in dict.fromkeys(found) if each in self._jobs]
        own = self._stage(job)
        before = [other for other, each in self._jobs.items() if self._stage(each) < own]
        # The jobs of the last stage before it wait for all earlier ones.
        last = max((self._stage(self._jobs[other]) for other in before), default=-1)
        return [
            name_of(other) for other in before if self._stage(self._jobs[other]) == last and other != name
        ]

    def _stage(self, job: YamlValue) -> int:
        stage = job.fields.get("stage", YamlValue(line=1, text="test")).text
        return self._stages.index(stage) if stage in self._stages else len(self._stages)

    def _images(self, fields: Mapping[str, YamlValue]) -> None:
        made = self._made
        if image := fields.get("image"):
            name = image.fields.get("name", image).text
            if "$" in name or not name:
                made.note(image.line, f"the image {name!r} has no counterpart", 1)
            else:
                made.write(1, f"image {quoted(name)}")
            made.rest(image, ("name",), "of an image", 1)
        for service in fields.get("services", _NONE).items:
            name = service.fields.get("name", service).text
            made.rest(service, ("name", "alias"), "of a service", 1)
            host = (
                service.fields["alias"].text
                if "alias" in service.fields
                else name.rpartition("/")[2].partition(":")[0]
            )
            host = re.sub(r"[^a-z0-9-]", "-", host.lower())
            if "$" in name or not host:
                made.note(service.line, f"the service {name!r} has no counterpart", 1)
                continue
            made.note(service.line, f"the service {host} gets no variables here: give them in its block", 1)
            made.write(1, f"service {quoted(host)} image={quoted(name)}")

    def _artifacts(self, value: YamlValue | None) -> None:
        if value is None:
            return
        made = self._made
        made.rest(value, ("paths", "expire_in", "name"), "of artifacts", 1)
        if "expire_in" in value.fields:
            made.note(value.fields["expire_in"].line, "expire_in: choose a retention", 1)
        for number, each in enumerate(value.fields.get("paths", _NONE).items, 1):
            path = each.text.removeprefix("./").rstrip("/")
            if "$" in path or path.startswith("/") or ".." in path.split("/") or not path:
                made.note(each.line, f"the artifact {each.text!r} has no counterpart", 1)
            else:
                made.write(1, f'artifact "files-{number}" path={quoted(path)}')
        made.note(value.line, "jobs get no files of earlier ones by themselves: see artifacts", 1)

    def _steps(self, job: YamlValue, own: Sequence[str]) -> None:
        made, fields = self._made, job.fields
        if "script" not in fields:
            made.refused_step(1, job.line, "nothing", "a job without script has no counterpart")
            return
        strange = next(
            (
                each
                for name in ("before_script", "script", "after_script")
                for each in _flat(fields.get(name))
                if not each.is_text
            ),
            None,
        )
        if strange is not None:
            made.refused_step(1, strange.line, "script", "this part of a script has no counterpart")
            return
        run = "\n".join(each.text for name in ("before_script", "script") for each in _flat(fields.get(name)))
        words: list[str] = []
        if (allowed := fields.get("allow_failure")) is not None:
            if allowed.text == "true":
                words.append("continue=#true")
            elif allowed.text != "false":
                made.note(allowed.line, "this allow_failure has no counterpart", 1)
        made.step(1, "script", with_variables(made, run, job.line, own) or "true", words)
        if "after_script" in fields:
            after = "\n".join(each.text for each in _flat(fields["after_script"]))
            made.step(
                1,
                "after_script",
                with_variables(made, after, job.line, own),
                ['if="always"', "continue=#true"],
            )


def _flat(value: YamlValue | None) -> Sequence[YamlValue]:
    if value is None:
        return ()
    if value.is_text:
        return (value,)
    return [inner for each in value.items for inner in (each.items or (each,))]


def _rule(text: str) -> str:
    if text in _RULES:
        return _RULES[text]
    branch = re.fullmatch(r"\$CI_COMMIT_BRANCH == [\"']([A-Za-z0-9._/-]+)[\"']", text)
    if branch:
        return f"branch == '{branch[1]}'"
    source = re.fullmatch(r"\$CI_PIPELINE_SOURCE == [\"']([a-z_]+)[\"']", text)
    return _SOURCES.get(source[1], "") if source else ""
