"""Every store records artifacts within their limits, until they expire."""

import asyncio
from dataclasses import replace

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.handing_spec import HandedArtifact
from solstice_orchestrator.stages.artifact_sweep import AT_ONCE
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.store.views import RunView
from tests.builders import job
from tests.stores import (
    FAILED,
    SUCCEEDED,
    ManualClock,
    claimed,
    outbox_statuses,
    planned,
    planning_task,
    request_of,
)

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


async def test_a_needed_job_is_known_with_what_it_hands_out(store: JobStore, clock: ManualClock) -> None:
    run_id = await planned(store, job("true", name="a"), job("true", name="b"), job("true", name="c"))
    one, two, _ = await claimed(store)
    for claim, outcome in ((one, SUCCEEDED), (two, FAILED)):
        assert await store.record_artifact(claim.key, DIST, 0) is ArtifactAnswer.STORED
        assert await store.finish(claim.key, outcome)
    found = await store.needed_jobs(run_id, {"a", "b", "missing"})
    assert {name: each.state for name, each in found.items()} == {
        "a": JobState.SUCCEEDED,
        "b": JobState.FAILED,
    }
    assert list(found["a"].artifacts.values()) == await store.artifacts(job_id=one.key.job_id)
    assert found["b"].artifacts == {}
    clock.forward(101.0)
    assert (await store.needed_jobs(run_id, {"a"}))["a"].artifacts == {}
    assert await store.needed_jobs("another", {"a"}) == {}


async def test_a_rerun_gets_what_it_does_not_repeat_from_the_runs_before(store: JobStore) -> None:
    specs = [job("true", name="build"), job("true", name="test", needs=("build",))]
    run_id = await planned(store, *specs)
    (build,) = await claimed(store)
    assert await store.record_artifact(build.key, DIST, 0) is ArtifactAnswer.STORED
    assert await store.finish(build.key, SUCCEEDED)
    for _ in range(2):
        (test,) = await claimed(store)
        assert await store.finish(test.key, FAILED)
        again = await store.rerun_failed(run_id)
        assert isinstance(again, RunView)
        run_id = again.run_id
        assert await store.planned(await planning_task(store), specs)
    (test,) = await claimed(store)
    found = await store.needed_jobs(run_id, {"build", "test"})
    assert found["build"].artifacts["dist"].job_id == build.key.job_id
    assert found["test"].state is JobState.RUNNING


TEXTS = (("version", "1.2\nand more"), ("empty", ""), ("name", "d\u00e9j\u00e0"))


async def test_outputs_come_with_the_end_of_the_attempt_that_succeeded(store: JobStore) -> None:
    run_id = await planned(store, job("true", name="a", retries=1), job("true", name="b"))
    first, other = await claimed(store)
    # What does not succeed has none, and neither has a lost attempt.
    assert await store.finish(first.key, replace(FAILED, outputs=TEXTS))
    assert await store.outputs(first.key.job_id) == {}
    (second,) = await claimed(store)
    assert not await store.finish(first.key, replace(SUCCEEDED, outputs=(("version", "late"),)))
    for _ in range(2):
        assert await store.finish(second.key, replace(SUCCEEDED, outputs=TEXTS))
    assert await store.outputs(second.key.job_id) == dict(TEXTS)
    assert await store.finish(other.key, SUCCEEDED)
    assert await store.outputs(other.key.job_id) == {}
    found = await store.needed_jobs(run_id, {"a", "b"})
    assert (found["a"].outputs, found["b"].outputs) == (dict(TEXTS), {})


async def test_the_status_of_a_job_says_what_it_hands_out(store: JobStore) -> None:
    await planned(store, job("true", retries=1))
    handed = HandedArtifact(name="dist", digest=DIST.digest, size=600, files=3)
    long = tuple((f"long-{number}", "x" * 5000) for number in range(3))
    (first,) = await claimed(store)
    assert await store.finish(first.key, replace(FAILED, artifacts=(handed,), outputs=TEXTS))
    (second,) = await claimed(store)
    assert await store.finish(second.key, replace(SUCCEEDED, artifacts=(handed,), outputs=(*TEXTS, *long)))
    results = [status.result for status in await outbox_statuses(store)]
    (result,) = [each for each in results if each is not None]
    assert result.artifacts is not None
    (artifact,) = result.artifacts
    assert (artifact.name, artifact.digest, artifact.size, artifact.files) == ("dist", DIST.digest, 600, 3)
    assert result.outputs == {**dict(TEXTS), "long-0": "x" * 5000}
    assert result.outputs_left_out == 2


async def test_runs_are_counted_by_their_states(store: JobStore, clock: ManualClock) -> None:
    ends = (SUCCEEDED, SUCCEEDED, FAILED)
    for number, outcome in enumerate((*ends, None)):
        await planned(store, request=request_of(f"lantern/repo-{number % 2}"))
        (claim,) = await claimed(store)
        if outcome is not None:
            assert await store.finish(claim.key, outcome)
        clock.forward(100.0)
    counts = await store.run_counts()
    assert (counts[RunState.SUCCEEDED], counts[RunState.FAILED]) == (2, 1)
    assert sum(counts.values()) == 4
    assert RunState.SUCCEEDED not in await store.run_counts(since_seconds=250.0)
    assert (await store.run_counts(since_seconds=250.0))[RunState.FAILED] == 1
    of_one = await store.run_counts(repository="lantern/repo-0")
    assert (of_one[RunState.SUCCEEDED], of_one[RunState.FAILED], sum(of_one.values())) == (1, 1, 2)
    assert await store.run_counts(repository="lantern/other") == {}


async def test_outputs_of_many_attempts_that_end_at_once_are_all_stored(store: JobStore) -> None:
    await planned(store, *(job("true", name=f"job-{number}") for number in range(5)))
    claims = await claimed(store)
    ends = [
        store.finish(claim.key, replace(SUCCEEDED, outputs=(("number", str(number % 2)),)))
        for number, claim in enumerate(claims)
    ]
    assert all([await each for each in ends])
    assert [await store.outputs(claim.key.job_id) for claim in claims] == [
        {"number": str(number % 2)} for number in range(5)
    ]


async def test_outputs_of_a_run_with_one_job_are_stored_without_reading_rows(store: JobStore) -> None:
    await planned(store)
    (claim,) = await claimed(store)
    assert await store.finish(claim.key, replace(SUCCEEDED, outputs=TEXTS))
    assert await store.outputs(claim.key.job_id) == dict(TEXTS)


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
