"""What jobs and workflows of GitHub Actions have in common: variables, expressions, groups. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from solstice_orchestrator.workflow.importing.foreign_yaml import YamlValue
from solstice_orchestrator.workflow.importing.translation import Translation, quoted

_EXPRESSION: Final = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_MATRIX: Final = re.compile(r"matrix\.([A-Za-z][A-Za-z0-9_-]*)")
_SECRET: Final = re.compile(r"secrets\.([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Variables, and the secrets that have the names of theirs."""

    values: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)


def env_of(made: Translation, env: YamlValue | None, depth: int) -> Environment:
    """Read variables, and note those that have no counterpart."""
    found = Environment()
    for name, value in env.fields.items() if env else ():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name) or name.startswith("SOLSTICE_"):
            made.note(value.line, f"{name!r} cannot name a variable", depth)
            continue
        expression = _EXPRESSION.fullmatch(value.text.strip())
        secret = _SECRET.fullmatch(expression[1]) if expression else None
        if secret and secret[1] == name:
            found.secrets.append(name)
            continue
        text, unknown = filled_text(value.text)
        if unknown:
            made.note(value.line, f"the variable {name} is not set: {unknown} has no counterpart", depth)
        else:
            found.values[name] = text
    return found


def filled_text(text: str) -> tuple[str, str]:
    """Return the text with places of the matrix.

    The second text is the first expression without a counterpart.
    """
    unknown = ""

    def place(match: re.Match[str]) -> str:
        nonlocal unknown
        axis = _MATRIX.fullmatch(match[1])
        if axis is None:
            unknown = unknown or match[0]
        return f"{{matrix.{axis[1]}}}" if axis else match[0]

    filled = _EXPRESSION.sub(place, text)
    return filled, unknown or ("{matrix." if "{matrix." in text else "")


def write_concurrency(made: Translation, value: YamlValue, depth: int) -> None:
    """Write the concurrency group, or note that it has no counterpart."""
    group = value.fields.get("group", value).text
    made.rest(value, ("group", "cancel-in-progress"), "of concurrency", depth)
    filled, unknown = filled_text(group)
    if unknown or not filled.strip():
        made.note(value.line, f"the concurrency group {group!r} has no counterpart; see supersede", depth)
        return
    mode = (
        ' mode="cancel"' if value.fields.get("cancel-in-progress", YamlValue(line=0)).text == "true" else ""
    )
    made.write(depth, f"concurrency {quoted(filled[:100])}{mode}")
