"""Translate conditions of GitHub Actions into `if`, or say that this is not possible. Pure."""

import re
from collections.abc import Mapping
from typing import Final

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<mark>&&|\|\||==|!=|!|\(|\)|,)|(?P<word>[A-Za-z_][A-Za-z0-9_.-]*))"
)
_EVENTS: Final[Mapping[str, str]] = {
    "pull_request": "event == 'change-request'",
    "schedule": "event == 'schedule'",
    "workflow_dispatch": "event == 'manual'",
    "release": "event == 'release'",
    "merge_group": "event == 'merge-group'",
    "push": "(event == 'push' || event == 'tag')",
}
_RESULTS: Final[Mapping[str, str]] = {
    "success": "succeeded",
    "failure": "failed",
    "cancelled": "cancelled",
    "skipped": "skipped",
}
_FACTS: Final[Mapping[str, str]] = {
    "github.repository": "repository",
    "github.base_ref": "target_branch",
    "github.event.repository.default_branch": "default_branch",
}


_IS_TAG: Final = [
    *(("mark", "("), ("word", "github.ref"), ("mark", ","), ("text", "'refs/tags/'"), ("mark", ")"))
]
"""What follows `startsWith` in the usual question for a tag."""


class NoCounterpart(ValueError):
    """The condition cannot be said here; the message names the part."""


def translated(text: str, *, in_step: bool) -> str:
    """Return the condition in our language. Raises NoCounterpart."""
    inner = text.strip()
    if inner.startswith("${{") and inner.endswith("}}"):
        inner = inner[3:-2]
    return " ".join(_Translator(_tokens(inner), in_step=in_step).all())


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise NoCounterpart(text[position:].strip()[:40])
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return found


class _Translator:
    def __init__(self, tokens: list[tuple[str, str]], *, in_step: bool) -> None:
        self._tokens, self._in_step = tokens, in_step

    def all(self) -> list[str]:
        parts: list[str] = []
        while self._tokens:
            kind, text = self._tokens[0]
            if kind == "mark" and text in {"&&", "||", "!", "(", ")"}:
                self._tokens.pop(0)
                parts.append(text)
            else:
                parts.append(self._atom())
        if not parts:
            raise NoCounterpart("an empty condition")
        return parts

    def _atom(self) -> str:
        kind, word = self._tokens.pop(0)
        if kind != "word":
            raise NoCounterpart(word)
        if self._tokens[:2] == [("mark", "("), ("mark", ")")] and self._in_step:
            del self._tokens[:2]
            words = {"always": "always", "failure": "failed", "success": "success"}
            if word in words:
                return words[word]
            raise NoCounterpart(f"{word}()")
        if word == "startsWith" and self._tokens[: len(_IS_TAG)] == _IS_TAG:
            del self._tokens[: len(_IS_TAG)]
            return "event == 'tag'"
        return self._comparison(word)

    def _comparison(self, word: str) -> str:
        if len(self._tokens) < 2 or self._tokens[0][1] not in {"==", "!="} or self._tokens[1][0] != "text":  # noqa: PLR2004  == text
            raise NoCounterpart(word)
        (_, mark), (_, quoted) = self._tokens[:2]
        del self._tokens[:2]
        text = quoted[1:-1]
        if "'" in text or "{" in text:
            raise NoCounterpart(quoted)
        equal = _equal(word, text)
        return equal if mark == "==" else f"!({equal})"


def _equal(word: str, text: str) -> str:
    """Return what it means that a context has this text."""
    if word == "github.event_name" and text in _EVENTS:
        return _EVENTS[text]
    for prefix, fact in (("refs/heads/", "branch"), ("refs/tags/", "tag")):
        if word == "github.ref" and text.startswith(prefix):
            return f"{fact} == '{text.removeprefix(prefix)}'"
    if word == "github.ref_name":
        return f"(branch == '{text}' || tag == '{text}')"
    value = _FACTS.get(word, "")
    if result := re.fullmatch(r"needs\.([A-Za-z0-9_-]+)\.result", word):
        value, text = f"result('{result[1]}')", _RESULTS.get(text, "")
    elif given := re.fullmatch(r"(?:github\.event\.)?inputs\.([A-Za-z][A-Za-z0-9_-]*)", word):
        value = f"input('{given[1]}')"
    elif matrix := re.fullmatch(r"matrix\.([A-Za-z0-9_-]+)", word):
        value = f"'{{matrix.{matrix[1]}}}'"
    if not value or not text:
        raise NoCounterpart(word)
    return f"{value} == '{text}'"
