"""`orchestrator run` with a job whose service is a real PostgreSQL, followed while both run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.store import JobStore
from tests.gated_jobs import Commit, all_ended, publish_requests, read_log, wait_for_jobs, wait_for_log
from tests.repositories import Repository
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.podman import PodmanStore, podman_store
from tests.servers.postgresql_image import POSTGRESQL, make_postgresql_image
from tests.servers.solstice_up import clean_environment

READY = "database system is ready to accept connections"
WORKFLOW = """
job "test" network=services-only timeout="2m" {
    image "IMAGE"
    service "postgres" image="IMAGE" {
        env { POSTGRES_USER "ci"; POSTGRES_PASSWORD "x" }
        ready "pg_isready -U ci"
        port 5432
    }
    env { DATABASE_URL "postgresql://ci:x@postgres/ci" }
    step "write" run="psql $DATABASE_URL -qc 'CREATE TABLE otters AS SELECT generate_series(1, 7) AS otter'"
    step "wait" run="echo it waits; until test -e /tmp/go; do sleep 0.05; done"
    step "read" run="psql $DATABASE_URL -Atc 'SELECT count(*) FROM otters'; psql $DATABASE_URL -c 'SELECT wrong'"
}
""".replace("IMAGE", POSTGRESQL)


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[PodmanStore]:
    with podman_store(tmp_path / "store", images=()) as store:
        make_postgresql_image(store)
        yield store


def following(environment: dict[str, str], job_id: str, service: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "solstice_cli", "logs", "-f", job_id, "--service", service],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def test_a_job_uses_its_postgresql_by_name_and_the_log_of_that_can_be_followed(
    shared_files: SharedFiles, podman: PodmanStore, store: JobStore, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "repository")
    commit = Commit(repository, repository.commit({".solstice/workflow.kdl": WORKFLOW}))
    settings = {**podman.environment, "EXECUTOR": "podman"}
    with orchestrator(shared_files, **settings) as process:
        await publish_requests(shared_files, commit)
        (job,) = await wait_for_jobs(store, lambda jobs: [job.state for job in jobs] == [JobState.RUNNING])
        await wait_for_log(store, job.job_id, b"it waits")
        environment = {**clean_environment(tmp_path / "home"), "SOLSTICE_URL": process.url}
        with following(environment, job.job_id, "postgres") as command:
            assert command.stdout is not None
            assert command.stderr is not None
            followed = b""
            while READY.encode() not in followed:
                followed += (piece := os.read(command.stdout.fileno(), 65536))
                assert piece, command.stderr.read()
            view = await store.job(job.job_id)
            assert view is not None
            assert view.state is JobState.RUNNING
            (container,) = [name for name in podman.containers() if not name.endswith("-postgres")]
            podman.run("exec", container, "touch", "/tmp/go")
            (job,) = await wait_for_jobs(store, all_ended)
            rest, words = command.communicate(timeout=60)
        # It ends with the job, and has what was written while it was followed.
        assert 'column "wrong" does not exist' in rest.decode()
        assert (command.returncode, words.decode().split()[-1]) == (1, "failed")
        with following(environment, job.job_id, "postgre") as misspelled:
            _, words = misspelled.communicate(timeout=60)
    assert (misspelled.returncode, b"those of: postgres" in words) == (2, True)
    assert (job.state, job.step, job.exit_code) == (JobState.FAILED, "read", 1)
    log = (await read_log(store, job.job_id)).decode()
    assert "\n7\n" in log
    # The end of what the service wrote is beside what failed.
    assert READY in log
    assert podman.containers() == podman.volumes() == podman.mounts() == []
