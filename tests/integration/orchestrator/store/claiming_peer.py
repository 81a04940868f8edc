"""A process that claims and finishes jobs until there are none: `python claiming_peer.py DATABASE_URL WORKER`."""

import asyncio
import sys

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store import open_store

DONE = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


async def main(url: str, worker: str) -> None:
    async with open_store(url) as store:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        while claims := await store.claim(worker, {"linux": 5}, 5):
            for claim in claims:
                sys.stdout.write(f"{claim.key.job_id} {claim.key.number}\n")
            await asyncio.gather(*[store.finish(claim.key, DONE) for claim in claims])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
