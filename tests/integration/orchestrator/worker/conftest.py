"""One podman with its images for all tests of containers."""

from collections.abc import Iterator

import pytest

from tests.servers.podman import PodmanStore, podman_store


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
    with podman_store(tmp_path_factory.mktemp("podman") / "store") as store:
        yield store
