"""Fills databases by the code of the previous release, and writes what it sees.

`tests/releases/record.py` runs it with the packages and test helpers of that release (0.1.0) first on the path, so it
may use only what both releases have.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from solstice_common.broker import Message, open_broker
from solstice_common.messages import JobRequestV1, derive_request_id
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from solstice_common.values.times import format_seconds
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.statuses.reportable_status import ReportableStatus
from solstice_forge.statuses.status_service import open_statuses
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.schedules.ticks import TickReason
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.protocol import OutboxKind
from solstice_orchestrator.store.views import LogChunk
from tests.builders import job, job_request
from tests.schedules import added_schedule, claimed_tick
from tests.statuses import reportable_status
from tests.stores import FAILED, SUCCEEDED, ManualClock, admitted, claimed, planned

REPOSITORY: Final = "harbour/lighthouse"
URL: Final = f"http://forge.example/{REPOSITORY}.git"
LOG: Final = (b"building\n", b"\x00\xff not text\n", "gr\u00f6\u00dfer\n".encode())
RELEASED: Final = 1_795_723_200.0
"""Around the day of that release: 2026-11-26 20:00 UTC."""
GONE: Final = Outcome(state=JobState.ERRORED, reason=Reason.CHECKOUT_FAILED, detail="no route to host")
TIMED_OUT: Final = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
JOBS: Final = jobs_route(BrokerSettings.model_construct())


def request(name: str, commit: str, **changes: Any) -> JobRequestV1:
    """A push to a branch of that name, from which the id follows, too."""
    return job_request(
        **{
            "request_id": derive_request_id(name),
            "repo_url": URL,
            "repo_full_name": REPOSITORY,
            "commit_sha": commit,
            "ref": f"refs/heads/{name.replace(' ', '-')}",
            "source_name": "forgejo",
            "delivery_id": name,
            "submitted_at": format_seconds(RELEASED),
            **changes,
        }
    )


async def fill_store(store: JobStore, clock: ManualClock, commit: str) -> None:
    """Add runs in all states, schedules, and an outbox of which a part is published."""
    await added_schedule(store.schedule_store, cron="*/5 * * * *", repo_url=URL, repo_full_name=REPOSITORY)
    await added_schedule(
        store.schedule_store, name="leap days", cron="0 0 29 2 *", repo_url=URL, repo_full_name=REPOSITORY
    )
    clock.forward(900.0)
    task = await claimed_tick(store.schedule_store)
    await store.schedule_store.not_fired(task, TickReason.FORGE_AWAY, "no route to host", retry=True)
    await store.schedule_store.pause("nightly")

    await planned(
        store,
        job("true", name="build"),
        job("true", name="test", needs=("build",)),
        request=request("ended", commit, idempotency_key="pushed once"),
    )
    for outcome in (SUCCEEDED, FAILED):
        clock.forward(7.0)
        (claim,) = await claimed(store)
        await store.append_log(
            claim.key, [LogChunk(sequence=1 + at, at=clock() + at, data=data) for at, data in enumerate(LOG)]
        )
        clock.forward(30.25)
        assert await store.finish(claim.key, outcome)
    await planned(store, job("true", name="slow"), request=request("timed out", commit))
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, TIMED_OUT)
    await planned(store, job("true", name="lint"), request=request("errored", commit))
    for _ in range(3):
        clock.forward(3600.0)
        await store.rescue()
        (claim,) = await claimed(store, worker="unlucky")
        assert await store.finish(claim.key, GONE)
    published = [row.number for row in await store.outbox(1000) if row.kind is OutboxKind.STATUS]
    await store.published(published[:-2])

    cancelled = await planned(store, job("true", runs_on="nowhere"), request=request("cancelled", commit))
    assert await store.cancel_run(cancelled) is not None
    await planned(
        store,
        job("echo once more", name="build"),
        job("sleep 600", name="unwanted"),
        job("echo afterwards", name="test", needs=("build",)),
        request=request("running", commit),
    )
    build, unwanted = await claimed(store, limit=2)
    assert await store.append_log(build.key, [LogChunk(sequence=1, at=clock(), data=b"cut off\n")])
    assert await store.cancel_job(unwanted.key.job_id) is not None
    await planned(store, job("true", name="flaky"), request=request("backoff", commit))
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, GONE)
    await planned(store, job("echo first", name="build"), request=request("waiting", commit, priority="high"))
    stranger = {"event": "change_request", "ref": "refs/pull/7/head", "change_number": 7, "trusted": False}
    await planned(
        store, job("true", name="build"), request=request("approval", commit, needs_approval=True, **stranger)
    )
    for number in (1, 2):
        own_change = {"event": "change_request", "ref": "refs/pull/8/head", "change_number": 8}
        await admitted(store, request(f"pull 8, push {number}", commit, **own_change))
        clock.forward(1.0)
    await admitted(store, request("delayed", commit, not_before=format_seconds(clock() + 3600)))
    await admitted(store, request("planning", commit))


def asking(name: str, commit: str) -> NewDelivery:
    """A delivery that asks for this."""
    this_request = request(name, commit)
    return NewDelivery(
        source_name="forgejo",
        delivery_id=name,
        event_name="push",
        repo_full_name=REPOSITORY,
        received_at=RELEASED,
        headers={"x-forgejo-event": "push"},
        body=b"{}",
        reason="push",
        detail="",
        content_key=f"key of {name}",
        request_id=this_request.request_id,
        request=this_request.encode(),
    )


def reported(context: str, commit: str) -> ReportableStatus:
    """A status that the forge does not show yet."""
    return reportable_status("succeeded", repo_full_name=REPOSITORY, commit_sha=commit, context=context)


async def fill_inbox(url: str, commit: str) -> None:
    """Add deliveries, one with a request that is not published, and a status to report."""
    async with open_inbox(url) as inbox, inbox.relaying():
        for name in ("ended", "running", "in the queue"):
            await inbox.keep(asking(name, commit))
        await inbox.published([each.row_id for each in await inbox.pending(9)])
        await inbox.keep(asking("ended", commit))
        await inbox.keep(asking("not published", commit))
        state = inbox.reconcile_state
        assert await state.claim("forgejo", "old", now=RELEASED, until=RELEASED + 60)
        await state.learn(RELEASED + 3600, [], lambda *_: None)
        await state.note_resend("forgejo", "lost", RELEASED)
        await state.end_round("forgejo", "old", now=RELEASED + 5, report=b"{}")
    async with open_statuses(url) as statuses:
        await statuses.keep([reported("solstice/old", commit)], RELEASED)


async def fill_broker(url: str, commit: str) -> None:
    """Leave a request and a foreign message in the queue, and a dead letter."""
    async with open_broker(url, name="release") as broker:
        await broker.ready(60)
        await broker.declare(full_topology(BrokerSettings.model_construct()))
        dead = {
            "x-solstice-reason": "invalid_message",
            "x-solstice-detail": "no JSON",
            "x-solstice-queue": JOBS.queue,
        }
        messages = [
            Message(
                exchange=JOBS.exchange,
                routing_key=JOBS.routing_key,
                body=request("in the queue", commit).encode(),
                type=JobRequestV1.VERSION,
            ),
            Message(exchange=JOBS.dlx, routing_key=JOBS.routing_key, body=b"no JSON", type="?", headers=dead),
        ]
        assert all(each.confirmed for each in await broker.publish(messages))


async def seen(store: JobStore) -> dict[str, Any]:
    """What the API would show of each run, by the id of its request."""
    runs: dict[str, Any] = {}
    for run in (await store.runs(limit=100)).runs:
        jobs: dict[str, Any] = {}
        for view in await store.jobs(run_id=run.run_id, limit=100):
            page = await store.log(view.job_id)
            jobs[view.name] = {
                "job_id": view.job_id,
                "state": view.state,
                "reason": view.reason,
                "attempts": [
                    [each.number, each.state, each.reason, each.started_at, each.finished_at, each.exit_code]
                    for each in await store.attempts(view.job_id)
                ],
                "log": b"".join(chunk.data for chunk in page.chunks).hex() if page else None,
            }
        runs[run.request_id] = {
            "run_id": run.run_id,
            "state": run.state,
            "created_at": run.created_at,
            "finished_at": run.finished_at,
            "jobs": jobs,
        }
    schedules = await store.schedule_store.schedules(limit=100)
    return {
        "runs": runs,
        "schedules": {
            each.name: len(await store.schedule_store.ticks(each.schedule_id, 100)) for each in schedules
        },
    }


async def fill(database: str, inbox: str, broker: str, commit: str) -> dict[str, Any]:
    clock = ManualClock(RELEASED)
    async with open_store(database, clock=clock) as store:
        await fill_store(store, clock, commit)
        assert clock() < time.time(), "the clock of the test must not be ahead of that of the new release"
        found = await seen(store)
    await fill_inbox(inbox, commit)
    await fill_broker(broker, commit)
    return found


if __name__ == "__main__":
    _, database, inbox, broker, commit, out = sys.argv
    found = asyncio.run(fill(database, inbox, broker, commit))
    Path(out).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
