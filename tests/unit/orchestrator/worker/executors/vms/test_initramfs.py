"""Archives that the kernel unpacks, read by another program's eyes."""

import subprocess

import pytest

from solstice_orchestrator.worker.executors.vms.initramfs import initramfs
from solstice_orchestrator.worker.executors.vms.vm_directory import AGENT


def test_an_archive_has_programs_directories_and_links() -> None:
    archive = initramfs({"init": b"#!/bin/sh\n", "bin/busybox": b"x" * 5}, ["bin"], {"bin/sh": "busybox"})
    entries = dict(parsed(archive))
    assert entries == {
        "bin": (0o040755, b""),
        "init": (0o100755, b"#!/bin/sh\n"),
        "bin/busybox": (0o100755, b"xxxxx"),
        "bin/sh": (0o120777, b"busybox"),
    }
    assert len(archive) % 4 == 0


def parsed(archive: bytes) -> list[tuple[str, tuple[int, bytes]]]:
    found: list[tuple[str, tuple[int, bytes]]] = []
    place = 0
    while True:
        fields = [int(archive[place + 6 + 8 * n : place + 14 + 8 * n], 16) for n in range(13)]
        assert archive[place : place + 6] == b"070701"
        mode, size, name_size = fields[1], fields[6], fields[11]
        begin = place + 110
        name = archive[begin : begin + name_size - 1].decode()
        content = -(-(begin + name_size) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found.append((name, (mode, archive[content : content + size])))
        place = -(-(content + size) // 4) * 4


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_agent_is_correct_for_every_shell(shell: str) -> None:
    checked = subprocess.run([shell, "-n", str(AGENT)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
