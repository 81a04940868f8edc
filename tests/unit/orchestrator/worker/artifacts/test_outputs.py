"""Outputs are short texts of plain files, or the job is refused."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.domain.handing_spec import OutputSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.worker.artifacts.outputs import (
    FILE,
    MAX_BYTES,
    MAX_FILE_BYTES,
    JobOutputs,
    read_outputs,
)
from solstice_orchestrator.worker.artifacts.sources import NotCollected
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles

A = OutputSpec(name="a")


class Job:
    """The folders that a job has left."""

    def __init__(self, directory: Path) -> None:
        self.source, self.temporary = directory / "source", directory / "tmp"
        self.source.mkdir()
        self.temporary.mkdir()

    def write(self, content: bytes) -> None:
        (self.temporary / FILE).write_bytes(content)

    def read(self, *specs: OutputSpec) -> JobOutputs | NotCollected:
        return read_outputs(specs, WorkspaceFiles(self.source), WorkspaceFiles(self.temporary))

    def texts(self, *specs: OutputSpec) -> dict[str, str]:
        read = self.read(*specs)
        assert isinstance(read, JobOutputs), read
        return dict(read.texts)

    def refusal(self, *specs: OutputSpec) -> str:
        read = self.read(*specs)
        assert isinstance(read, NotCollected)
        assert read.reason in {Reason.OUTPUT_REFUSED, Reason.ARTIFACT_REFUSED}
        return read.detail


@pytest.fixture
def left(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_steps_append_lines_and_blocks(left: Job) -> None:
    left.write(b"a=1\n\nb=x=y << z\nc<<END\none\n\n a=2\nEND\nd=\na=3\nother=no\n")
    read = left.read(A, *(OutputSpec(name=name) for name in "bcd"), OutputSpec(name="e", default="none"))
    assert read == JobOutputs(
        texts={"a": "3", "b": "x=y << z", "c": "one\n\n a=2", "d": "", "e": "none"}, undeclared=["other"]
    )


def test_a_text_has_the_content_of_files(left: Job) -> None:
    (left.source / "deep").mkdir()
    (left.source / "deep/VERSION").write_text("1.2\n\n")
    (left.source / "two").write_text("a\nb\n")
    text = "v{file:deep/VERSION}+{file:two}!"
    assert left.texts(OutputSpec(name="v", text=text), OutputSpec(name="plain", text="x")) == {
        "v": "v1.2+a\nb!",
        "plain": "x",
    }


@settings(max_examples=60)
@given(
    texts=st.dictionaries(
        st.sampled_from(["a", "b-c", "D_e", "f.g"]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    )
)
def test_any_texts_are_read_as_they_were_written(
    texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = Job(tmp_path_factory.mktemp("job"))
    job.write("".join(f"{name}<<-end-\n{text}\n-end-\n" for name, text in texts.items()).encode())
    expected = {name: text for name, text in texts.items() if "-end-" not in text.split("\n")}
    assert job.texts(*(OutputSpec(name=name) for name in expected)) == expected


def linked(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def linked_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def piped(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


def a_directory(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (linked, "is a symbolic link"),
        (linked_to_nothing, "is a symbolic link"),
        (piped, "is a named pipe"),
        (listening, "is a socket"),
        (a_directory, "is a directory"),
        (huge, "which no output may have"),
    ],
)
def test_what_is_no_short_plain_file_is_refused(left: Job, make: Callable[[Path], None], words: str) -> None:
    make(left.temporary / FILE)
    assert f"{FILE} " in left.refusal(A)
    assert words in left.refusal(A)
    make(left.source / "x")
    assert words in left.refusal(OutputSpec(name="v", text="{file:x}")) or make is huge


def test_a_link_above_a_file_is_not_followed(left: Job, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").write_text("secret")
    (left.source / "dir").symlink_to("../other")
    assert "dir/x is below what is no directory" in left.refusal(OutputSpec(name="v", text="{file:dir/x}"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no step has written the output a to $SOLSTICE_OUTPUT"),
        (b"b=1", "no step has written the output a"),
        (b"a=1\nno mark\n", "line 2 of $SOLSTICE_OUTPUT is neither name=text nor name<<END: no mark"),
        (b" a=1\n", "line 1 of $SOLSTICE_OUTPUT is neither"),
        (b"a<<\nx\n", "line 1 of $SOLSTICE_OUTPUT is neither"),
        (b"a=\xff\n", "$SOLSTICE_OUTPUT is no UTF-8 text: byte 2 is 0xff"),
        (b"a=\xed\xa0\x80\n", "no UTF-8 text"),
        (b"a=x\0y\n", "has a byte 0"),
        (b"b=1\na<<END\nx\n", "line 2 of $SOLSTICE_OUTPUT begins a text that no line 'END' ends"),
        (b"a=" + b"x" * (MAX_BYTES + 1), "the output a has more than 32 KiB"),
    ],
)
def test_what_is_no_output_is_named(left: Job, content: bytes, words: str) -> None:
    left.write(content)
    assert words in left.refusal(A)


def test_files_that_are_missing_binary_or_too_large_together_are_named(left: Job) -> None:
    assert "there is no such file" in left.refusal(OutputSpec(name="v", text="{file:missing}"))
    (left.source / "binary").write_bytes(b"\x80")
    assert "binary (output v) is no UTF-8 text" in left.refusal(OutputSpec(name="v", text="{file:binary}"))
    (left.source / "long").write_text("x" * MAX_BYTES)
    specs = [OutputSpec(name=name, text="{file:long}") for name in "abc"]
    assert len(left.texts(*specs[:2])) == 2
    assert left.refusal(*specs) == "all outputs together have more than 64 KiB"
