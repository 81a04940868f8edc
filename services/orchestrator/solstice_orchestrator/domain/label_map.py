"""Read settings that say something for each label, as `linux=podman,illumos=qemu`. Pure."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

ExecutorKind = Literal["process", "podman", "qemu"]
"""The executors that a label may have for itself."""
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def parse_executors(text: str) -> Mapping[str, ExecutorKind]:
    """Read the executor of each label; ValueError says what is wrong."""
    kinds: Mapping[str, ExecutorKind] = {kind: kind for kind in get_args(ExecutorKind)}
    entries = _entries(text, "linux=podman,illumos=qemu")
    unknown = [kind for kind in entries.values() if kind not in kinds]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of the executors {', '.join(kinds)}")
    return MappingProxyType({label: kinds[kind] for label, kind in entries.items()})


def parse_image_folders(text: str) -> Mapping[str, str]:
    """Read the folder of the image of each label; ValueError says what is wrong."""
    example = "linux=/srv/images/debian"
    folders = _entries(text, example)
    relative = [folder for folder in folders.values() if not folder.startswith("/")]
    if relative:
        raise ValueError(f"{relative[0]!r} is no absolute path; write for example {example}")
    return MappingProxyType(folders)


def _entries(text: str, example: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        label, _, value = (part.strip() for part in entry.partition("="))
        if not _LABEL.fullmatch(label) or not value:
            raise ValueError(f"{entry!r} names no label and what it has; write for example {example}")
        if label in entries:
            raise ValueError(f"the label {label!r} stands there twice")
        entries[label] = value
    return entries
