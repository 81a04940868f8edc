"""Read test reports in a process of its own: `python -m solstice_orchestrator.reports ROOT...`.

Its input is an archive as artifacts have it (a plain tar), its output one JobReport as JSON. What it reads may be hostile and
its parser is written in C: so it has little memory and time, and nothing but that input. The ROOTs are the paths under which the
job had its workspace.
"""

import os
import resource
import sys
import tarfile
from collections.abc import Sequence
from typing import BinaryIO, Final

from solstice_orchestrator.reports.junit_xml import NotJUnit, read_junit
from solstice_orchestrator.reports.reduction import ReportReduction
from solstice_orchestrator.reports.values import JobReport, encode_report

MEMORY_BYTES: Final = 640 * 1024**2
PROCESSOR_SECONDS: Final = 20


def main(roots: Sequence[str]) -> None:
    """Read the archive at the input, and write the report to the output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 1))
    sys.stdout.buffer.write(encode_report(read_archive(sys.stdin.buffer, roots)))


def read_archive(file: BinaryIO, roots: Sequence[str]) -> JobReport:
    """Return what the reports in an archive say together."""
    summary = ReportReduction()
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            # Its bytes as they are: the name need not be text.
            name = shown(os.fsencode(member.name))
            content = archive.extractfile(member)
            try:
                read_junit(content.read() if content else b"", summary.take, roots)
            except NotJUnit as error:
                summary.take_problem(f"{name}: {error}")
            except MemoryError:
                summary.take_problem(f"{name}: reading it needs too much memory")
    return summary.report()


def shown(name: bytes) -> str:
    """Return the name of a file for people, also when its bytes are no text."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)[:200]


if __name__ == "__main__":
    main(sys.argv[1:])
