"""Read the outputs of a job whose steps have succeeded.

Files are as hostile as those of artifacts, and are opened by the same sources.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.domain.handing_spec import FILE_PLACE, OutputSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.worker.artifacts.collecting import reading
from solstice_orchestrator.worker.artifacts.sources import (
    ArtifactSource,
    NoCollection,
    NotCollected,
    SourceFolder,
    refused,
    shown,
)

MAX_BYTES: Final = 32 * 1024
"""Of one output."""
MAX_ALL_BYTES: Final = 64 * 1024
"""Of all outputs of a job."""
MAX_GIVEN_BYTES: Final = 512 * 1024
"""Of all outputs that a job gets."""
MAX_FILE_BYTES: Final = 1024 * 1024
"""Of the file that the steps write."""
FILE: Final = "solstice-output"
"""The name of that file, in the directory for temporary files."""
VARIABLE: Final = "SOLSTICE_OUTPUT"
"""The variable of the steps that says where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutputs:
    """The outputs of one attempt."""

    texts: Mapping[str, str]
    undeclared: Sequence[str] = ()
    """Names that its steps have written, and that its workflow file does not have."""


def read_outputs(
    specs: Sequence[OutputSpec], workspace: ArtifactSource, written: ArtifactSource
) -> JobOutputs | NotCollected:
    """Return the outputs; blocks.

    `written` is the folder with the file that the steps have written.
    """
    try:
        lines = _lines(_content(written, FILE, MAX_FILE_BYTES) or b"")
        texts = {spec.name: _text(spec, workspace, lines) for spec in specs}
        if sum(map(_size, texts.values())) > MAX_ALL_BYTES:
            raise _refusal(f"all outputs together have more than {MAX_ALL_BYTES // 1024} KiB")
    except NoCollection as stopped:
        return stopped.why
    return JobOutputs(texts=texts, undeclared=[name for name in lines if name not in texts])


def _text(spec: OutputSpec, workspace: ArtifactSource, lines: Mapping[str, str]) -> str:
    if spec.text is not None:
        text = FILE_PLACE.sub(lambda place: _file(spec.name, place[1], workspace), spec.text)
    elif (found := lines.get(spec.name, spec.default)) is not None:
        text = found
    else:
        raise _refusal(f"no step has written the output {spec.name} to ${VARIABLE}")
    if _size(text) > MAX_BYTES:
        raise _refusal(f"the output {spec.name} has more than {MAX_BYTES // 1024} KiB")
    return text


def _file(name: str, path: str, workspace: ArtifactSource) -> str:
    """Return the text of a file, without the line breaks at its end."""
    content = _content(workspace, path, MAX_BYTES)
    if content is None:
        raise _refusal(f"the output {name} is to have the text of {path}, and there is no such file")
    return _decoded(content, f"{path} (output {name})").rstrip("\n")


def _lines(content: bytes) -> Mapping[str, str]:
    """Return what the steps have written, by its names; of one name, the last counts.

    It is `name=text`, or `name<<END`, lines of text, and a line `END`.
    """
    found: dict[str, str] = {}
    lines = enumerate(_decoded(content, f"${VARIABLE}").split("\n"), start=1)
    for number, line in lines:
        if not line.strip():
            continue
        name, mark, rest = _divided(line)
        if not mark:
            raise _refusal(
                f"line {number} of ${VARIABLE} is neither name=text nor name<<END: {shown(line.encode())}"
            )
        if mark == "=":
            found[name] = rest
            continue
        block: list[str] = []
        for _, inner in lines:
            if inner == rest:
                break
            block.append(inner)
        else:
            raise _refusal(f"line {number} of ${VARIABLE} begins a text that no line {rest!r} ends")
        found[name] = "\n".join(block)
    return found


def _divided(line: str) -> tuple[str, str, str]:
    """Return the name, `=` or `<<`, and the rest; empty ones if this is another line."""
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(=|<<(?=.))(.*)", line, re.DOTALL)
    return (found[1], found[2], found[3]) if found else ("", "", "")


def _decoded(content: bytes, what: str) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _refusal(
            f"{what} is no UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}"
        ) from None
    if "\0" in text:
        raise _refusal(f"{what} has a byte 0, which no text has")
    return text


def _content(source: ArtifactSource, path: str, most: int) -> bytes | None:
    """Return the content of a plain file; None: there is none of that path."""
    with reading(path), source() as folder:
        return _read(folder, [os.fsencode(part) for part in path.split("/")], os.fsencode(path), most)


def _read(folder: SourceFolder, parts: Sequence[bytes], path: bytes, most: int) -> bytes | None:
    name, *below = parts
    mode = folder.mode(name)
    if mode is None:
        return None
    if below:
        if not stat.S_ISDIR(mode):
            raise refused(path, "is below what is no directory")
        with folder.folder(name) as inner:
            return _read(inner, below, path, most)
    with folder.file(name, path) as file:
        if file.size > most:
            raise refused(path, f"has more than {most // 1024} KiB, which no output may have")
        pieces = list[bytes]()
        while (left := file.size - sum(map(len, pieces))) and (piece := file.read(left)):
            pieces.append(piece)
        return b"".join(pieces)


def _size(text: str) -> int:
    return len(text.encode())


def _refusal(detail: str) -> NoCollection:
    return NoCollection(Reason.OUTPUT_REFUSED, detail)
