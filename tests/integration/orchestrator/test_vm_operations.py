"""`orchestrator run` with VMs: strangers' code by the operator's word."""

import os
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore
from tests.gated_jobs import Commit, all_ended, publish_requests, read_log, wait_for_jobs
from tests.polling import wait_until_true
from tests.repositories import Repository
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.vm_image import vm_image, why_no_vm

SECRET = "heron-otter-7732"
IN_VMS = """
job "look" runs-on=vm { step run="ls /sys/class/net; env; echo it ends" }
job "take" runs-on=vm { secret "DEPLOY_KEY"; step run="echo never" }
"""
HERE = 'job "look" { step run="echo never" }'


async def test_strangers_run_in_vms_by_the_operators_word_and_never_beside_them(
    shared_files: SharedFiles, store: JobStore, tmp_path: Path
) -> None:
    # On Debian as root QEMU is installed, so that CI runs this; elsewhere a machine may have none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    rules = tmp_path / "secrets.toml"
    rules.write_text('[[rules]]\nrepositories = ["**"]\nsecrets = { DEPLOY_KEY = "env:PLANTED" }\n')
    repository = Repository(tmp_path / "repository")
    here, in_vms = (repository.commit({".solstice/workflow.kdl": text}) for text in (HERE, IN_VMS))
    settings = {
        "EXECUTOR_MAP": "vm=qemu",
        "VM_IMAGES": f"vm={vm_image(tmp_path / 'image')}",
        "VM_ACCELERATION": "tcg",
        "VM_MEMORY_MIB": "128",
        "VM_CPUS": "1",
        "CAPACITY_MAP": "linux=1,vm=1",
        "SECRETS_CONFIG": str(rules),
        "UNTRUSTED_RUNS": "isolated",
        "PATH": os.environ["PATH"],
    }
    with orchestrator(shared_files, **settings, PLANTED=SECRET):
        await publish_requests(shared_files, Commit(repository, here), trusted=False)

        async def is_refused() -> bool:
            runs = (await store.runs(limit=10)).runs
            return [run.state for run in runs] == [RunState.ERRORED] and "linux are not" in runs[0].detail

        await wait_until_true("it is refused", is_refused)
        await publish_requests(shared_files, Commit(repository, in_vms), trusted=False)
        jobs = {job.name: job for job in await wait_for_jobs(store, all_ended)}
    assert (jobs["look"].state, jobs["take"].reason) == (JobState.SUCCEEDED, Reason.SECRET_MISSING)
    log = (await read_log(store, jobs["look"].job_id)).decode()
    assert "\nlo\n" in log
    assert "eth0" not in log
    assert SECRET not in log
    assert "never" not in (await read_log(store, jobs["take"].job_id)).decode()
