"""Several processes on one store."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from solstice_common.messages.states import JobState
from solstice_orchestrator.store import open_store
from tests.builders import job
from tests.stores import outbox_statuses, planned

PEER = Path(__file__).with_name("claiming_peer.py")
JOBS = 120


async def test_every_job_goes_to_exactly_one_of_three_processes(store_url: str) -> None:
    async with open_store(store_url) as store:
        for _ in range(4):
            await planned(store, *[job("true", name=str(number)) for number in range(JOBS // 4)])
        with ExitStack() as stack:
            peers = [
                stack.enter_context(
                    subprocess.Popen(  # noqa: ASYNC220  a peer starts in no time
                        [sys.executable, str(PEER), store_url, f"worker-{number}"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for number in range(3)
            ]
            for peer in peers:
                assert peer.stdout is not None
                assert peer.stdout.readline() == "ready\n"
            lines = []
            for peer in peers:
                assert peer.stdin is not None
                peer.stdin.write("go\n")
                peer.stdin.flush()
            for peer in peers:
                out, _ = peer.communicate(timeout=100)
                assert peer.returncode == 0
                lines.append(out.split("\n")[:-1])
        claims = [line for each in lines for line in each]
        assert len(claims) == len(set(claims)) == JOBS
        assert all(line.endswith(" 1") for line in claims)
        views = await store.jobs(limit=1000)
        assert {view.state for view in views} == {JobState.SUCCEEDED}
        sequences: dict[str, list[int]] = {}
        for status in await outbox_statuses(store):
            sequences.setdefault(status.job_id or status.run_id, []).append(status.sequence)
        assert all(each == sorted(set(each)) for each in sequences.values())
