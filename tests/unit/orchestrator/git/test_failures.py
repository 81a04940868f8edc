"""Messages of git about failures, and the cause derived from each."""

import errno
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.failures import (
    MACHINE_ERRORS,
    GitErrors,
    is_machine,
    is_past_memory,
    read_formats,
    reason_of,
    reason_of_local,
)


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: write error: No space left on device\nfatal: fetch-pack: invalid index-pack output",
        "error: unable to write file a.bin: Disk quota exceeded",
        "fatal: cannot fork to run fetch-pack: Resource temporarily unavailable",
        "error: cannot fork() for index-pack: Cannot allocate memory",
        "error: unable to create file b: Read-only file system",
        "error: cannot create pipe: Too many open files",
    ],
)
def test_what_the_machine_lacks_is_the_machines(stderr: str) -> None:
    assert reason_of(GitErrors(stderr=stderr)) is Reason.MACHINE_FAILED


@pytest.mark.parametrize(
    "stderr",
    [
        f"error: unable to create file {'x' * 300}: File name too long",
        "error: object 12ab: hasDotgit: contains '.git'\nfatal: fsck error in packed object",
        "error: invalid path '.git/config'",
        "fatal: exceeded maximum allowed tree depth",
    ],
)
def test_what_a_commit_brings_is_the_commits(stderr: str) -> None:
    assert reason_of(GitErrors(stderr=stderr)) is Reason.COMMIT_UNUSABLE


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: unable to access 'https://x/': Could not resolve host: x",
        "fatal: the remote end hung up unexpectedly",
        "remote: No space left on device\nfatal: early EOF",
        "fatal: remote error: No space left on device",
        "remote: File name too long",
        *(
            f"remote: hello{mark}error: unable to write file a: No space left on device\nfatal: early EOF"
            for mark in "\v\f\x1c\x85\u2028"
        ),
        "fatal: Out of memory, malloc failed (tried to allocate 4096 bytes)",
        "fatal: mmap failed: Cannot allocate memory",
        "error: inflate: out of memory",
        "",
    ],
)
def test_what_the_host_does_or_says_is_the_hosts(stderr: str) -> None:
    assert reason_of(GitErrors(stderr=stderr)) is Reason.CHECKOUT_FAILED


@pytest.mark.parametrize(
    ("stderr", "past"),
    [
        ("fatal: Out of memory, realloc failed", True),
        ("remote: out of memory", False),
        ("error: cannot fork() for index-pack: Cannot allocate memory", False),
    ],
)
def test_gits_own_limit_is_distinguished_from_the_machines_and_from_the_hosts_errors(
    stderr: str, past: bool
) -> None:
    assert is_past_memory(GitErrors(stderr=stderr)) is past


@given(st.text(max_size=60))
def test_a_file_name_never_accuses_the_machine(name: str) -> None:
    stderr = f"error: unable to create file {name}: No space left on device\n: File name too long"
    assert reason_of(GitErrors(stderr=stderr)) is not Reason.MACHINE_FAILED


@given(st.text())
def test_a_host_never_accuses_the_machine_or_the_commit(stderr: str) -> None:
    # As git does: only these two end a line of the server.
    lines = "\n".join(f"remote: {line}" for line in re.split(r"[\r\n]", stderr))
    assert reason_of(GitErrors(stderr=f"{lines}\nfatal: early EOF")) is Reason.CHECKOUT_FAILED


def test_errors_of_system_calls() -> None:
    assert all(is_machine(OSError(number, "x")) for number in MACHINE_ERRORS)
    assert is_machine(MemoryError())
    assert is_machine(RuntimeError("can't start new thread"))
    assert not is_machine(OSError(errno.ENAMETOOLONG, "x"))
    assert not is_machine(RuntimeError("x"))
    assert not is_machine(ValueError("No space left on device"))


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("fatal: Out of memory, malloc failed (tried to allocate 1048576 bytes)", Reason.COMMIT_UNUSABLE),
        ("error: invalid path '.git/config'", Reason.COMMIT_UNUSABLE),
        ("error: unable to write file a: No space left on device", Reason.MACHINE_FAILED),
        ("", Reason.CHECKOUT_FAILED),
    ],
)
def test_the_memory_that_git_needs_where_no_host_is_asked_is_the_commits(stderr: str, reason: Reason) -> None:
    assert reason_of_local(GitErrors(stderr=stderr), 128) is reason


LYING = "error: unable to create symlink l\nfatal: cannot fork\nx: No space left on device\n: Not a directory"


@pytest.mark.parametrize(
    ("formats", "reason"),
    [
        (("unable to create symlink %s: Not a directory",), Reason.CHECKOUT_FAILED),
        (("remote error: %s",), Reason.CHECKOUT_FAILED),
        ((), Reason.CHECKOUT_FAILED),
        (
            ("write error: No space left on device", "fetch-pack: invalid index-pack output"),
            Reason.MACHINE_FAILED,
        ),
        (("cannot fork() for %s: Resource temporarily unavailable",), Reason.MACHINE_FAILED),
        (("cannot stat '%s': File name too long",), Reason.COMMIT_UNUSABLE),
        (("unable to create symlink %s: No such file or directory",), Reason.COMMIT_UNUSABLE),
        (("mmap failed%s: Cannot allocate memory",), Reason.CHECKOUT_FAILED),
    ],
)
def test_words_that_git_quotes_accuse_no_machine(formats: tuple[str, ...], reason: Reason) -> None:
    assert reason_of(GitErrors(stderr=LYING, formats=formats)) is reason


@given(st.text(), st.lists(st.sampled_from(["remote error: %s", "fsck error", "bad object %s"])))
def test_the_machine_is_accused_by_gits_own_messages_and_by_nothing_that_they_quote(
    stderr: str, formats: list[str]
) -> None:
    text = f"{stderr}\n{LYING}"
    assert reason_of(GitErrors(stderr=text, formats=tuple(formats))) is not Reason.MACHINE_FAILED


def test_a_local_command_that_exceeds_its_stack_does_so_because_of_the_commit() -> None:
    assert reason_of_local(GitErrors(), -11) is Reason.COMMIT_UNUSABLE
    assert reason_of_local(GitErrors(), -9) is Reason.CHECKOUT_FAILED


@pytest.mark.parametrize(
    ("trace", "formats"),
    [
        (b"", None),
        (b'{"event":"error"', None),
        (b'{"event":"start"}\n', ()),
        (
            b'{"event":"error","msg":"a \xff","fmt":"a %s"}\n{"event":"error","msg":"b","fmt":"a %s"}\n',
            ("a %s",),
        ),
        (b'{"event":"error"\n{"event":"error"}\n{"event":"err', ("",)),
    ],
)
def test_formats_of_errors_are_read_from_the_trace(trace: bytes, formats: tuple[str, ...] | None) -> None:
    assert read_formats(trace) == formats
