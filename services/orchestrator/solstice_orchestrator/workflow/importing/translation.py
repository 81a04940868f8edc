"""Write a workflow file, and list what has no counterpart in it. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KEYWORDS: Final = frozenset({"true", "false", "null", "inf", "nan"})
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """Something of the file that a person has to look at."""

    line: int
    sentence: str


def quoted(text: str) -> str:
    """Return the text as a string of KDL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + _CONTROL.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", escaped) + '"'


def word(text: str) -> str:
    """Return the text as a name of a node, quoted where needed."""
    return text if _WORD.fullmatch(text) and text not in _KEYWORDS else quoted(text)


def name_of(text: str) -> str:
    """Return a name that a job can have."""
    return _NAME.sub("-", text).strip("-._")[:60] or "job"


def line_of(text: str) -> str:
    """Return one line that a step can be called."""
    return " ".join(_CONTROL.sub(" ", text).split())[:100] or "step"


@dataclass(slots=True, kw_only=True)
class Translation:
    """The new file as it grows, and its findings."""

    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def write(self, depth: int, text: str) -> None:
        """Add a line."""
        self.lines.append(_INDENT * depth + text if text else "")

    def note(self, line: int, sentence: str, depth: int | None = None) -> None:
        """List a finding, and leave a comment at this place of the file."""
        self.findings.append(Finding(line=line, sentence=sentence))
        if depth is not None:
            self.write(depth, f"// line {line}: {line_of(sentence)}")

    def rest(self, value: YamlValue, known: Iterable[str], where: str, depth: int | None = None) -> None:
        """List each field of a mapping that is not among `known`."""
        for name, each in value.fields.items():
            if name not in set(known):
                self.note(each.line, f"{name!r} {where} has no counterpart", depth)

    def step(
        self,
        depth: int,
        name: str,
        run: str,
        properties: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        """Write a step with its command."""
        end = " {" if env or secrets else ""
        tail = "".join(f" {each}" for each in properties)
        head = f"step {quoted(line_of(name))}{tail}"
        is_plain = '"""' not in run and not _CONTROL.search(run) and "\n" in run
        if is_plain:
            self.write(depth, f'{head} run=#"""')
            for line in run.rstrip("\n").split("\n"):
                self.write(depth + 1 if line.strip() else 0, line if line.strip() else "")
            self.write(depth + 1, f'"""#{end}')
        else:
            self.write(depth, f"{head} run={quoted(run)}{end}")
        if end:
            self.env(depth + 1, env or {})
            if secrets:
                self.write(depth + 1, " ".join(["secret", *map(quoted, secrets)]))
            self.write(depth, "}")

    def refused_step(self, depth: int, line: int, name: str, sentence: str) -> None:
        """Write a step that fails, in the place of one that was not understood."""
        self.note(line, sentence, depth)
        words = line_of(f"not imported, line {line}: {sentence}").replace("'", "")
        self.step(depth, name, f"echo '{words}' >&2; exit 1")

    def env(self, depth: int, env: Mapping[str, str]) -> None:
        """Write variables."""
        if env:
            self.write(depth, "env {")
            for name, value in env.items():
                self.write(depth + 1, f"{word(name)} {quoted(value)}")
            self.write(depth, "}")

    @property
    def text(self) -> str:
        """The whole file."""
        return "\n".join(self.lines).strip("\n") + "\n"


_VARIABLE: Final = re.compile(r"\$\{?((?:CI|GITHUB|GITLAB|RUNNER|DRONE)_[A-Z0-9_]+)")
_ALIASES: Final[Mapping[str, str]] = {
    "GITHUB_SHA": "SOLSTICE_COMMIT_SHA",
    "GITHUB_REF": "SOLSTICE_REF",
    "GITHUB_REPOSITORY": "SOLSTICE_REPOSITORY",
    "GITHUB_WORKSPACE": "SOLSTICE_WORKSPACE",
    "CI_COMMIT_SHA": "SOLSTICE_COMMIT_SHA",
    "CI_COMMIT_REF": "SOLSTICE_REF",
    "CI_PROJECT_PATH": "SOLSTICE_REPOSITORY",
    "CI_PROJECT_DIR": "SOLSTICE_WORKSPACE",
    "CI_WORKSPACE": "SOLSTICE_WORKSPACE",
    "CI_REPO": "SOLSTICE_REPOSITORY",
}


def with_variables(translation: Translation, run: str, line: int, own: Iterable[str] = ()) -> str:
    """Return the command with the variables of the other system.

    They are set, or checked so that it fails without them.
    """
    first: list[str] = []
    for name in dict.fromkeys(_VARIABLE.findall(run)):
        if name in set(own):
            continue
        if name in _ALIASES:
            first.append(f'export {name}="${_ALIASES[name]}"')
        else:
            translation.note(line, f"the variable {name} has no counterpart: the step fails until it is set")
            first.append(f': "${{{name}:?not imported}}"')
    return "\n".join([*first, run])
