"""Resolves references to secrets: `env:NAME`, `file:PATH`, or `plain:VALUE` for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

KINDS: Final = ("env", "file", "plain")
ADVICE: Final = "write env:NAME, file:PATH or plain:VALUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """A resolver of references; relative paths count from `folder`."""

    folder: Path
    environ: Mapping[str, str] = field(repr=False)

    def value(self, reference: str) -> str:
        """Return the value of the reference, without line breaks at its end.

        ValueError says what is missing and what to do, and never contains a secret.
        """
        kind, rest = split(reference)
        match kind:
            case "env":
                content = self.environ.get(rest, "")
                missing = f"the environment variable {rest} is not set or empty: set it, or remove this"
            case "file":
                path = self.folder / Path(rest).expanduser()
                content, missing = _content(path), f"the file {path} is empty: write the secret into it"
            case _:
                content, missing = rest, "holds nothing after plain:"
        content = content.strip("\r\n")
        if not content.strip():
            raise ValueError(missing)
        return content


def split(reference: str) -> tuple[str, str]:
    """Return the kind and the rest of a reference; ValueError for anything else."""
    kind, separator, rest = reference.partition(":")
    if not separator or kind not in KINDS:
        raise ValueError(f"a secret does not stand here as it is: {ADVICE}")
    return kind, rest


def _content(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not UTF-8"
        raise ValueError(f"the file {path} cannot be read: {problem}") from None


def _checked(reference: str) -> str:
    split(reference)
    return reference


Reference = Annotated[str, AfterValidator(_checked)]
"""A reference in the file of a configuration, not resolved."""
