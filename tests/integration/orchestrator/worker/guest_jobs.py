"""Runs jobs that exceed their limits, and prints how each ended.

`guest_jobs ARCHIVE NAME...`, in a guest.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from solstice_orchestrator.domain.container_spec import ContainerSpec
from tests.container_jobs import ContainerJobs, container_jobs
from tests.servers.podman import IMAGE, podman_store

RESULT = "RESULT "
SECONDS = 500.0
"""For a job of a guest whose processors are simulated, on a busy machine."""
LIMITS = """
cd /sys/fs/cgroup
echo limits $(cat memory.max memory.swap.max pids.max cpu.max)
used() { while read name value; do test $name != "$1" || echo $value; done < cpu.stat; }
begun=${EPOCHREALTIME/./} before=$(used usage_usec)
while [ $(( ${EPOCHREALTIME/./} - begun )) -lt 1500000 ]; do :; done
echo elapsed $(( ${EPOCHREALTIME/./} - begun ))
echo used $(( $(used usage_usec) - before ))
echo throttled $(used nr_throttled)
"""
GROWS = "bash -c 'x=a; while :; do x=$x$x; done' || exit 3"
FORKS = "exec sh -c 'for i in $(seq 500); do sleep 1000 & done'"
JOBS = {"memory": (LIMITS, GROWS), "processes": (FORKS,)}


async def main(archive: str, *names: str) -> None:
    home = Path(os.environ["HOME"])
    with podman_store(home / "podman", Path(archive)) as store:
        async with container_jobs(store, home / "jobs") as jobs:
            for name in names:
                killed = asyncio.ensure_future(first_kill(jobs))
                outcome = await jobs.run(
                    *JOBS[name], container=ContainerSpec(image=IMAGE, cpus=0.25), timeout_seconds=SECONDS
                )
                late = time.monotonic() - killed.result() if killed.done() else None
                killed.cancel()
                facts = {
                    "job": name,
                    "user": os.geteuid(),
                    "state": outcome.state,
                    "reason": outcome.reason,
                    "detail": outcome.detail,
                    "exit_code": outcome.exit_code,
                    "seconds_after_kill": late,
                    "text": jobs.text,
                }
                # In one write: another process writes, too.
                os.write(1, f"\n{RESULT}{json.dumps(facts)}\n".encode())
                jobs.output.clear()


async def first_kill(jobs: ContainerJobs) -> float:
    """The moment when the kernel has ended a process for want of memory."""
    while True:
        for group in jobs.groups:
            for events in group.rglob("memory.events"):
                # Its group may be gone by now.
                with contextlib.suppress(OSError):
                    if "oom_kill 0" not in events.read_text():
                        return time.monotonic()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
