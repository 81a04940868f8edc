"""Archives are in the directory whole, for as long as something needs them."""

import os
from pathlib import Path

import pytest

from solstice_orchestrator.worker.artifacts.artifact_archives import INCOMING_SECONDS, ArtifactArchives

DIGEST = "ab" * 32


@pytest.fixture
def directory(tmp_path: Path) -> ArtifactArchives:
    directory = ArtifactArchives(tmp_path / "artifacts")
    directory.prepare()
    return directory


def place(directory: ArtifactArchives, content: bytes = b"content", until: float = 1000.0) -> None:
    with directory.incoming() as archive:
        archive.file.write(content)
        directory.place(archive, DIGEST, until)


def incoming(directory: ArtifactArchives) -> list[Path]:
    return list((directory.path / "incoming").iterdir())


def test_an_archive_has_its_name_when_all_of_it_is_there(directory: ArtifactArchives) -> None:
    with directory.incoming() as archive:
        archive.file.write(b"content")
        assert directory.find(DIGEST) is None
        directory.place(archive, DIGEST, 1000.0)
    found = directory.find(DIGEST)
    assert found is not None
    assert found.read_bytes() == b"content"
    assert found.stat().st_mode & 0o777 == 0o600
    assert incoming(directory) == []


def test_an_archive_that_was_not_placed_is_gone(directory: ArtifactArchives) -> None:
    with directory.incoming() as archive:
        archive.file.write(b"content")
        assert incoming(directory) == [archive.path]
    assert incoming(directory) == []
    assert directory.find(DIGEST) is None


def test_an_equal_archive_prolongs_the_one_that_is_there(directory: ArtifactArchives) -> None:
    place(directory, until=1000.0)
    place(directory, until=3000.0)
    place(directory, until=2000.0)
    assert incoming(directory) == []
    assert directory.expired(2999.0, 10) == []
    assert directory.expired(3001.0, 10) == [DIGEST]


def test_an_archive_that_lost_its_end_is_replaced(directory: ArtifactArchives) -> None:
    place(directory)
    found = directory.find(DIGEST)
    assert found is not None
    os.truncate(found, 3)
    place(directory)
    assert found.read_bytes() == b"content"


def test_only_what_is_still_expired_is_removed(directory: ArtifactArchives) -> None:
    place(directory, until=1000.0)
    assert directory.expired(1001.0, 10) == [DIGEST]
    place(directory, until=2000.0)
    assert directory.remove([DIGEST], 1001.0) == 0
    assert directory.remove([DIGEST, "cd" * 32], 2001.0) == 1
    assert directory.find(DIGEST) is None


def test_what_killed_orchestrators_left_goes_after_a_day(directory: ArtifactArchives) -> None:
    left = directory.path / "incoming" / "left"
    left.write_bytes(b"part")
    os.utime(left, (1000.0, 1000.0))
    assert directory.remove_left(1000.0 + INCOMING_SECONDS) == 0
    assert directory.remove_left(1001.0 + INCOMING_SECONDS) == 1
    assert incoming(directory) == []
