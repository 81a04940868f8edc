"""Signed requests on a real broker: repeated, refused, replayed, in and out of both queues."""

import asyncio
import random
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from solstice_common.broker import Broker, Delivery, Message
from solstice_common.broker.headers import IDEMPOTENCY_HEADER, SIGNATURE_HEADER, without_broker_headers
from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.messages.states import RunState
from solstice_common.settings import BrokerSettings
from solstice_common.signing.jws import MAX_CHARACTERS, sign
from solstice_common.signing.key_file import KeyFile, change_public, read_public
from solstice_common.signing.signer import SigningBroker
from solstice_common.topology import CANCELS, Route, full_topology, jobs_route
from solstice_forge.relay.publication import publication
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS, Reason
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.stages.cancel_intake import CancelIntake
from solstice_orchestrator.stages.intake import Intake, SignatureRules
from solstice_orchestrator.stages.outbox_relay import OutboxRelay
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job_cancel, job_request
from tests.integration.orchestrator.stages.test_intake_and_outbox import emptied, received, task_of
from tests.signing import KeyPair
from tests.stores import ManualClock, sqlite_store, wait_for_stored


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with open_store(sqlite_store(tmp_path)) as opened:
        yield opened


class Verifying:
    """An orchestrator's two intakes, with a file of keys."""

    def __init__(self, tmp_path: Path) -> None:
        self.path, self.pair = tmp_path / "verify.json", KeyPair()
        self.pair.publish(self.path)

    @asynccontextmanager
    async def running(
        self,
        broker: Broker,
        store: JobStore,
        settings: BrokerSettings,
        *,
        max_age_seconds: float | None = None,
    ) -> AsyncIterator[None]:
        keys, topology = KeyFile(self.path, read_public), full_topology(settings)
        rules = SignatureRules(keys=keys, v1_trust=V1_TRUST, max_age_seconds=max_age_seconds)
        metrics, rng = Metrics(), random.Random(1)
        intake = Intake(broker=broker, store=store, metrics=metrics, rng=rng, signatures=rules)
        cancels = CancelIntake(broker=broker, store=store, metrics=metrics, rng=rng, verify_keys=keys)
        async with (
            task_of(asyncio.create_task(intake.run(jobs_route(settings), topology, prefetch=64))),
            task_of(asyncio.create_task(cancels.run(CANCELS, topology, prefetch=64))),
        ):
            yield

    def signing(self, broker: Broker) -> SigningBroker:
        return SigningBroker(broker, lambda: self.pair.signing)


@pytest.fixture
def verifying(tmp_path: Path) -> Verifying:
    return Verifying(tmp_path)


async def publish(broker: Broker | SigningBroker, *messages: Message) -> None:
    assert all(outcome.confirmed for outcome in await broker.publish(messages))


async def has_runs(store: JobStore, *requests: JobRequestV1) -> None:
    expected = {request.request_id for request in requests}

    async def known() -> set[str]:
        return {run.request_id for run in (await store.runs(limit=500)).runs}

    await wait_for_stored(store, known, lambda found: found == expected)


def again(dead_letter: Delivery, jobs: Route) -> Message:
    """The dead letter as a replay publishes it: its body and its signature."""
    headers = without_broker_headers(dead_letter.headers)
    return Message(
        exchange=jobs.exchange,
        routing_key=jobs.routing_key,
        body=dead_letter.body,
        type=JobRequestV1.VERSION,
        headers={SIGNATURE_HEADER: str(headers[SIGNATURE_HEADER])},
    )


async def test_without_keys_a_request_is_published_as_it_always_was(
    broker: Broker, jobs: Route, broker_settings: BrokerSettings
) -> None:
    request = job_request()
    await publish(broker, publication(request.encode(), jobs, attempt=1))
    (delivery,) = await received(broker, jobs.queue, 1)
    assert delivery.body == request.encode()
    assert dict(delivery.headers) == {
        "x-solstice-attempt": 1,
        "x-solstice-idempotency-key": request.request_id,
    }


async def test_a_signed_request_that_comes_again_is_one_run(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    """As recorded, with another attempt, or signed on another day: the store knows it."""
    requests = [job_request() for _ in range(20)]
    signs = verifying.signing(broker)
    async with verifying.running(broker, store, broker_settings):
        for attempt in (1, 2, 3):
            await publish(
                signs, *(publication(request.encode(), jobs, attempt=attempt) for request in requests)
            )
        await publish(signs, publication(requests[0].encode(), jobs, attempt=1))
        await emptied(broker, jobs.queue)
        await has_runs(store, *requests)
    assert (await broker.depth(jobs.dlq)) is None or not await ready(broker, jobs.dlq)


async def ready(broker: Broker, queue: str) -> int:
    depth = await broker.depth(queue)
    return 0 if depth is None else depth.ready


async def test_a_dead_letter_of_an_unknown_key_is_replayed_once_the_key_is_known(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    requests = [job_request() for _ in range(3)]
    change_public(verifying.path, lambda _: [])
    async with verifying.running(broker, store, broker_settings):
        await publish(
            verifying.signing(broker),
            *(publication(request.encode(), jobs, attempt=1) for request in requests),
        )
        dead = await received(broker, jobs.dlq, 3)
        assert {each.headers["x-solstice-reason"] for each in dead} == {"unknown_key"}
        verifying.pair.publish(verifying.path)
        await publish(broker, *(again(each, jobs) for each in dead))
        await has_runs(store, *requests)


async def test_a_signed_cancel_ends_runs_and_an_unsigned_one_none(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    requests = [job_request(change_number=number, trusted=False) for number in (1, 2)]
    admitted = await store.admit(requests)
    cancels = [job_cancel(change_number=number, submitted_at="2026-03-02T12:00:00Z") for number in (1, 2)]
    async with verifying.running(broker, store, broker_settings):
        await publish(broker, publication(cancels[1].encode(), jobs, attempt=1))
        await publish(verifying.signing(broker), publication(cancels[0].encode(), jobs, attempt=1))
        (dead,) = await received(broker, CANCELS.dlq, 1)
        await wait_for_stored(
            store,
            lambda: store.run(admitted[0].run_id),
            lambda run: run is not None and run.state is RunState.CANCELLED,
        )
    assert dead.headers["x-solstice-reason"] == "unsigned"
    untouched = await store.run(admitted[1].run_id)
    assert untouched is not None
    assert untouched.state is RunState.PLANNING


async def test_a_signature_does_not_pass_from_one_queue_to_the_other(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    """A body that was signed as a cancel is no request on any queue."""
    body = job_request().encode()
    as_cancel = sign([body], JobCancelV1.VERSION, verifying.pair.signing)[0]
    async with verifying.running(broker, store, broker_settings):
        await publish(
            broker,
            Message(
                exchange=jobs.exchange,
                routing_key=jobs.routing_key,
                body=body,
                type=JobRequestV1.VERSION,
                headers={SIGNATURE_HEADER: as_cancel},
            ),
        )
        (dead,) = await received(broker, jobs.dlq, 1)
    assert dead.headers["x-solstice-reason"] == "wrong_type"


@pytest.mark.parametrize(
    "header",
    ["x" * 60_000, "." * (MAX_CHARACTERS + 1), "a.b.c", "", 7, True],
    ids=lambda value: str(value)[:8],
)
async def test_a_header_that_is_no_signature_is_a_dead_letter_and_the_next_request_a_run(
    broker: Broker,
    store: JobStore,
    jobs: Route,
    broker_settings: BrokerSettings,
    verifying: Verifying,
    header: str | int,
) -> None:
    good = job_request()
    spoiled = publication(job_request().encode(), jobs, attempt=1)
    async with verifying.running(broker, store, broker_settings):
        await publish(
            broker,
            Message(
                exchange=spoiled.exchange,
                routing_key=spoiled.routing_key,
                body=spoiled.body,
                type=spoiled.type,
                headers={SIGNATURE_HEADER: header},
            ),
        )
        await publish(verifying.signing(broker), publication(good.encode(), jobs, attempt=1))
        (dead,) = await received(broker, jobs.dlq, 1)
        await has_runs(store, good)
    assert dead.headers["x-solstice-reason"] == "malformed_signature"
    assert dead.body == spoiled.body


async def test_each_attack_is_a_dead_letter_with_its_reason_and_no_run(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    pair, revoked, request_version = verifying.pair, KeyPair("revoked"), JobRequestV1.VERSION
    revoked.publish(verifying.path)
    change_public(verifying.path, lambda keys: [key for key in keys if key.name != "revoked"])
    request, body = job_request(), job_request().encode()
    cancel = job_cancel().encode()
    genuine = sign([body], request_version, pair.signing)[0]
    head, _, tail = genuine.split(".")
    unprotected = urlsafe_b64encode(b'{"alg":"none","kid":"forge","typ":"jobrequest.v1"}').rstrip(b"=")
    old = job_request(submitted_at="2020-01-01T00:00:00Z").encode()
    attacks = [
        (body, sign([body], request_version, KeyPair().signing)[0], "wrong_signature"),
        (body, sign([request.encode()], request_version, pair.signing)[0], "wrong_signature"),
        (body.replace(b"lantern", b"attacker"), genuine, "wrong_signature"),
        (body, f"{head}..{'A' * 86}", "wrong_signature"),
        (body, f"{unprotected.decode()}..", "malformed_signature"),
        (body, f"{unprotected.decode()}..{tail}", "malformed_signature"),
        (body, f"{head}.{urlsafe_b64encode(body).decode().rstrip('=')}.{tail}", "malformed_signature"),
        (cancel, sign([cancel], JobCancelV1.VERSION, pair.signing)[0], "wrong_type"),
        (body, sign([body], "jobstatus.v1", pair.signing)[0], "wrong_type"),
        (body, sign([body], request_version, revoked.signing)[0], "unknown_key"),
        (old, sign([old], request_version, pair.signing)[0], "too_old"),
    ]
    async with verifying.running(broker, store, broker_settings, max_age_seconds=3600):
        await publish(
            broker,
            *(
                Message(
                    exchange=jobs.exchange,
                    routing_key=jobs.routing_key,
                    body=attack,
                    type=request_version,
                    headers={SIGNATURE_HEADER: signature},
                )
                for attack, signature, _ in attacks
            ),
        )
        dead = await received(broker, jobs.dlq, len(attacks))
        ahead = job_request(submitted_at="2100-01-01T00:00:00Z")
        await publish(verifying.signing(broker), publication(ahead.encode(), jobs, attempt=1))
        await has_runs(store, ahead)
    reasons = [(each.body, each.headers["x-solstice-reason"]) for each in dead]
    assert sorted(reasons) == sorted((attack, reason) for attack, _, reason in attacks)


async def test_a_recorded_message_with_other_ids_and_headers_is_the_run_that_it_was(
    broker: Broker, store: JobStore, jobs: Route, broker_settings: BrokerSettings, verifying: Verifying
) -> None:
    request = job_request()
    signature = sign([request.encode()], JobRequestV1.VERSION, verifying.pair.signing)[0]
    changed: list[dict[str, str | int]] = [
        {},
        {"x-solstice-priority": "critical", "x-solstice-attempt": 900},
        {IDEMPOTENCY_HEADER: "of an attacker", "x-solstice-reason": "unsigned", "x-trusted": "true"},
    ]
    async with verifying.running(broker, store, broker_settings):
        await publish(
            broker,
            *(
                Message(
                    exchange=jobs.exchange,
                    routing_key=jobs.routing_key,
                    body=request.encode(),
                    type=JobRequestV1.VERSION,
                    correlation_id=f"another id {number}",
                    headers={**headers, SIGNATURE_HEADER: signature},
                )
                for number, headers in enumerate(changed)
            ),
        )
        last = job_request()
        await publish(verifying.signing(broker), publication(last.encode(), jobs, attempt=1))
        await has_runs(store, request, last)
    assert await ready(broker, jobs.dlq) == 0


async def test_a_dead_letter_of_a_run_that_the_world_spoiled_is_replayed_as_the_run_it_was(
    broker: Broker,
    jobs: Route,
    broker_settings: BrokerSettings,
    verifying: Verifying,
    tmp_path: Path,
) -> None:
    """Its signature comes from the store; a replay is a known request, no second run."""
    clock, requests = ManualClock(), [job_request() for _ in range(3)]
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}", clock=clock) as store:
        async with verifying.running(broker, store, broker_settings):
            await publish(
                verifying.signing(broker),
                *(publication(request.encode(), jobs, attempt=1) for request in requests),
            )
            await has_runs(store, *requests)
            for _ in range(MAX_ATTEMPTS):
                clock.forward(1000)
                for task in await store.claim_planning("worker", 10):
                    await store.not_planned(task, Reason.CHECKOUT_FAILED, "no route to host")
            outbox = OutboxRelay(
                store=store,
                broker=broker,
                jobs=jobs,
                topology=full_topology(broker_settings),
                metrics=Metrics(),
                rng=random.Random(1),
            )
            async with task_of(asyncio.create_task(outbox.run())):
                dead = await received(broker, jobs.dlq, 3)
            assert {each.headers["x-solstice-reason"] for each in dead} == {"checkout_failed"}
            await publish(broker, *(again(each, jobs) for each in dead))
            await emptied(broker, jobs.queue)
            # One more request behind them, so that all three have been looked at.
            last = job_request()
            await publish(verifying.signing(broker), publication(last.encode(), jobs, attempt=1))
            await has_runs(store, *requests, last)
        assert await ready(broker, jobs.dlq) == 0
