"""Every store records artifacts within their limits, until they expire."""

import asyncio
from dataclasses import replace

from solstice_orchestrator.stages.artifact_sweep import AT_ONCE
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from tests.builders import job
from tests.stores import FAILED, SUCCEEDED, ManualClock, claimed, planned

DIST = ArtifactRecord(name="dist", digest="ab" * 32, size=600, files=3, retention_seconds=100.0)


async def test_an_artifact_is_listed_with_its_run_and_its_job(store: JobStore, clock: ManualClock) -> None:
    run_id = await planned(store, job("true", name="build"))
    (claim,) = await claimed(store)
    assert await store.record_artifact(claim.key, DIST, 0) is ArtifactAnswer.STORED
    assert await store.finish(claim.key, SUCCEEDED)
    (view,) = await store.artifacts(run_id=run_id)
    assert (view.run_id, view.job_id, view.job) == (run_id, claim.key.job_id, "build")
    assert (view.name, view.digest, view.size, view.files) == ("dist", DIST.digest, 600, 3)
    assert (view.attempt, view.expires_at - view.created_at) == (1, 100.0)
    assert await store.artifacts(job_id=claim.key.job_id) == [view]
    assert await store.artifacts(run_id="another") == []
    assert await store.recorded_digests([DIST.digest, "cd" * 32]) == {DIST.digest}
    clock.forward(101.0)
    assert await store.artifacts(run_id=run_id) == []
    assert await store.expire_artifacts(AT_ONCE) == 1
    assert await store.expire_artifacts(AT_ONCE) == 0
    assert await store.recorded_digests([DIST.digest]) == frozenset()


async def test_only_a_current_attempt_hands_out(store: JobStore) -> None:
    run_id = await planned(store, job("true", retries=1))
    (first,) = await claimed(store)
    assert await store.record_artifact(first.key, DIST, 0) is ArtifactAnswer.STORED
    assert await store.finish(first.key, FAILED)
    assert await store.record_artifact(first.key, DIST, 0) is ArtifactAnswer.FENCED
    (second,) = await claimed(store)
    newer = replace(DIST, digest="cd" * 32, size=1)
    assert await store.record_artifact(second.key, newer, 0) is ArtifactAnswer.STORED
    assert [(view.attempt, view.digest) for view in await store.artifacts(run_id=run_id)] == [
        (2, newer.digest)
    ]


async def test_all_artifacts_together_are_limited_and_equal_ones_count_once(store: JobStore) -> None:
    await planned(store, job("true", name="a"), job("true", name="b"))
    one, two = await claimed(store)
    assert await store.record_artifact(one.key, DIST, 1000) is ArtifactAnswer.STORED
    assert await store.record_artifact(two.key, DIST, 1000) is ArtifactAnswer.STORED
    other = replace(DIST, name="log", digest="cd" * 32)
    assert await store.record_artifact(one.key, other, 1199) is ArtifactAnswer.FULL
    assert await store.record_artifact(one.key, other, 1200) is ArtifactAnswer.STORED


async def test_two_at_once_do_not_exceed_the_limit(store: JobStore) -> None:
    run_id = await planned(store, job("true", name="a"), job("true", name="b"))
    claims = await claimed(store)
    answers = await asyncio.gather(
        *(
            store.record_artifact(claim.key, replace(DIST, digest=f"{number:064}"), 1000)
            for number, claim in enumerate(claims)
        )
    )
    assert sorted(answers) == [ArtifactAnswer.FULL, ArtifactAnswer.STORED]
    assert len(await store.artifacts(run_id=run_id)) == 1
