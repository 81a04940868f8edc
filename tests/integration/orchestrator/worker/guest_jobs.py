"""Runs a hostile job that reaches its limits, as root and as another user.

`guest_program ARCHIVE USER...`, in a guest, prints how each ended; `guest_program limits USER...` does what guest_enclosures.py says. Its
processors are simulated, so it starts as few programs as it can: Python imports everything once, and then forks.
"""

import asyncio
import ctypes
import json
import os
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from solstice_orchestrator.domain.container_spec import ContainerSpec
from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts
from solstice_orchestrator.worker.executors.containers import podman_launcher
from solstice_orchestrator.worker.executors.containers.container_facts import judged
from tests.builders import job_request
from tests.container_jobs import RULES, container_jobs
from tests.escapes import tried
from tests.integration.orchestrator.worker.guest_enclosures import RESULT, print_ends
from tests.servers.podman import IMAGE, QUICK_RUNTIME, configured_store

USER = 2000
HOMES = {0: "/mnt/root", USER: "/mnt/user"}
GROUP = "/sys/fs/cgroup/user"
SECONDS = 400.0
"""For a job of a guest whose processors are simulated, on a busy machine; less than its test has, so that it is told."""
PR_SET_DUMPABLE = 4
CPUS = 0.5
LIMITS = """
cd /sys/fs/cgroup
echo limits $(cat memory.max memory.swap.max pids.max cpu.max)
used() { while read name value; do test $name != "$1" || echo $value; done < cpu.stat; }
begun=${EPOCHREALTIME/./} before=$(used usage_usec)
while [ $(( ${EPOCHREALTIME/./} - begun )) -lt 800000 ]; do :; done
echo elapsed $(( ${EPOCHREALTIME/./} - begun ))
echo used $(( $(used usage_usec) - before ))
echo throttled $(used nr_throttled)
"""
REACHES = """
exec 3<>/dev/tcp/127.0.0.1/3128
printf 'CONNECT other.example:443 HTTP/1.1\\r\\n\\r\\n' >&3
read -r status <&3
echo "proxy $status"
"""
FORKS = """
sh -c 'for i in $(seq 500); do sleep 1000 & done' || echo refused $?
is_there() { { read -r name < $1/comm; } 2>/dev/null && test "$name" = sleep; }
for each in /proc/[0-9]*; do ! is_there $each || kill -9 ${each#/proc/}; done
# The next step needs room: a killed process counts until it is collected.
for each in /proc/[0-9]*; do while is_there $each; do :; done; done
"""
GROWS = "dd if=/dev/zero of=/dev/null bs=80M count=1 || { echo killed ${EPOCHREALTIME/./}; exit 3; }"


def main(archive: str, *users: str) -> None:
    runs = print_ends if archive == "limits" else partial(_run, archive=archive)
    # One after the other: they have one processor, and a job that another one slows down is not throttled for its limit.
    for user in map(int, users):
        os.waitpid(os.fork() or _run_as(user, runs), 0)


def _run_as(user: int, runs: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    try:
        if user:
            _become(user)
        home = HOMES[user]
        os.environ.update(HOME=home, TMPDIR=f"{home}/tmp")
        asyncio.run(runs())
    except Exception:  # noqa: BLE001  it is told, and the other user's job goes on
        traceback.print_exc()
    # Without clearing up: the guest ends, and all that is in it.
    os._exit(0)


def _become(user: int) -> None:
    Path(GROUP, "cgroup.procs").write_text("0")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{user}"
    # Or else /proc/self belongs to root: proc(5).
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


async def _run(archive: str) -> None:
    home = Path(os.environ["HOME"])
    moments = {"python": time.monotonic()}
    known = list[float]()

    def noted(*words: Any) -> Outcome:
        known.append(time.time())
        return judged(*words)

    setattr(podman_launcher, "judged", noted)  # noqa: B010  it is no variable for a type checker
    # An overlay of a user lies on few file systems.
    store = configured_store(home / "podman", "vfs", QUICK_RUNTIME)
    if os.geteuid():
        # Root's is there.
        store.run("import", "--quiet", archive, IMAGE)
    moments["image"] = time.monotonic()
    rules = replace(RULES, egress=AllowedHosts(hosts=parse_hosts("pypi.org")))
    async with container_jobs(store, home / "jobs", rules, request=job_request(trusted=False)) as jobs:
        moments["executor"] = time.monotonic()
        # Root's attempts to leave are tested on the machine itself.
        leaves = ["\n".join(tried())] if os.geteuid() else []
        outcome = await jobs.outcome_of(
            *(LIMITS, REACHES, *leaves, FORKS, GROWS),
            checkout=None,
            container=ContainerSpec(image=IMAGE, cpus=CPUS),
            timeout_seconds=SECONDS,
        )
        ended, moments["job"] = time.time(), time.monotonic()
        facts = {
            "user": os.geteuid(),
            "state": outcome.state,
            "reason": outcome.reason,
            "detail": outcome.detail,
            "exit_code": outcome.exit_code,
            "known": known,
            "ended": ended,
            "left": [*map(str, jobs.groups), *jobs.left_in_workspaces],
            "moments": moments,
            "text": jobs.text,
        }
        # In one write: the kernel writes, too.
        os.write(1, f"\n{RESULT}{json.dumps(facts)}\n".encode())
