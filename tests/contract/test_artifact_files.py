"""What every executor promises about the files that a job hands out."""

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.handing_spec import NeededArtifact
from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason
from solstice_orchestrator.store.artifact_records import ArtifactView
from tests.executor_setups import BEFORE, MIB, ExecutorSetup, backend_for, open_executor

FILES = """
mkdir -p dist/bin "dist/two words"
echo one > dist/one; echo 'exit 3' > dist/bin/run; chmod 700 dist/bin/run; echo > "dist/two words/-x"
ln dist/one dist/same; echo other > other; sleep 1000 &
[ "$(cat given/x)" = "of the other job" ]; given/bin/run || [ $? = 3 ]; echo more >> given/x; rm given/bin/run
mkdir given/new; ln given/x given/new/x; rm -r given/bin
"""
DIST = {"dist/bin/run": b"exit 3\n", "dist/one": b"one\n", "dist/same": b"one\n", "dist/two words/-x": b"\n"}
REFUSALS = {
    "link": ("mkdir dist; ln -s /etc/passwd dist/users; echo x > dist/x", "dist/users is a symbolic link"),
    "too large": (
        f"mkdir dist; echo x > dist/a; head -c {MIB + 1} /dev/zero > dist/b",
        "dist/b makes it larger than 1 MiB, which an artifact may have (ARTIFACT_MAX_MIB)",
    ),
}


@pytest.fixture(params=["process", "podman", "qemu"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExecutorSetup]:
    async with open_executor(request.param, tmp_path, backend_for(request.param, request)) as opened:
        yield opened


def archive_of(files: dict[str, bytes]) -> bytes:
    """The archive that these files make, of which one may be executed."""
    out = io.BytesIO()
    for name, content in files.items():
        header = tarfile.TarInfo(name)
        header.size, header.mode = len(content), 0o755 if name.endswith("run") else 0o644
        out.write(header.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
    return out.getvalue() + bytes(1024)


def given(subject: ExecutorSetup) -> dict[NeededArtifact, ArtifactView]:
    """An artifact of another job, of this executor's directory."""
    content = archive_of({"bin/run": b"#!/bin/sh\nexit 3\n", "x": b"of the other job\n"})
    digest = hashlib.sha256(content).hexdigest()
    subject.archives.prepare()
    with subject.archives.incoming() as incoming:
        incoming.file.write(content)
        subject.archives.place(incoming, digest, 0)
    view = ArtifactView(
        run_id="run",
        job_id="id",
        job=BEFORE,
        attempt=1,
        name="given",
        digest=digest,
        size=len(content),
        files=2,
        created_at=0.0,
        expires_at=1.0,
    )
    return {NeededArtifact(job=BEFORE, name="given", into="given"): view}


async def test_files_that_fit_are_kept_and_make_the_same_archive_everywhere(subject: ExecutorSetup) -> None:
    """Files of another job are there before the first step, and belong to the job."""
    expected = {
        "dist": ("dist/**", archive_of(DIST)),
        "other": ("other", archive_of({"other": b"other\n"})),
        "programs": ("**/r?n", archive_of({"dist/bin/run": b"exit 3\n"})),
    }
    artifacts = [
        ArtifactSpec(name=name, path=path, retention_seconds=60.0) for name, (path, _) in expected.items()
    ]
    nothing = ArtifactSpec(name="nothing", path="dust/**")
    outcome, output = await subject.run(FILES, artifacts=(*artifacts, nothing), needed=given(subject))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_REFUSED), output
    assert "$ artifacts\ngiven of before: files: 2, bytes: " in output
    assert outcome.detail == "artifact nothing: no file of the workspace fits 'dust/**'"
    assert [record.name for record in subject.records] == list(expected)
    for record in subject.records:
        _, content = expected[record.name]
        assert (record.digest, record.size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert record.retention_seconds == 60.0
        path = subject.archives.find(record.digest)
        assert path is not None
        assert path.read_bytes() == content
        assert (
            f"artifact {record.name}: files: {record.files}, bytes: {record.size}, sha256:{record.digest}"
            in output
        )


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_what_cannot_be_handed_out_fails_the_job_in_the_same_words(
    subject: ExecutorSetup, refusal: str
) -> None:
    script, words = REFUSALS[refusal]
    outcome, output = await subject.run(script, artifacts=(ArtifactSpec(name="dist", path="dist/**"),))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_REFUSED), output
    assert outcome.detail.startswith(f"artifact dist: {words}")
    assert outcome.detail in output
    assert subject.records == []
