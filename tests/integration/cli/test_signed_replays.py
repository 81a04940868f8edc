"""A replay keeps the signature: a signed message is taken, an unsigned one refused again."""

import json
from pathlib import Path

from solstice_common.broker import Message, open_broker
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.settings import BrokerSettings
from solstice_common.signing.jws import sign
from solstice_orchestrator.store import open_store
from tests.brokers import broker_url, pytest_generate_tests
from tests.dead_letter_replays import JOBS, fill, refused
from tests.integration.cli.test_dlq_commands import answer
from tests.integration.orchestrator.stages.test_signed_intake import Verifying
from tests.traffic import wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]


def signed(dead_letter: Message, verifying: Verifying) -> Message:
    """The same dead letter, of a message that the key signed."""
    signature = sign([dead_letter.body], dead_letter.type, verifying.pair.signing)[0]
    return Message(
        exchange=dead_letter.exchange,
        routing_key=dead_letter.routing_key,
        body=dead_letter.body,
        type=dead_letter.type,
        correlation_id=dead_letter.correlation_id,
        headers={**dead_letter.headers, SIGNATURE_HEADER: signature},
    )


async def test_a_signed_dead_letter_is_taken_and_an_unsigned_one_comes_back_dead(
    broker_url: str, tmp_path: Path
) -> None:
    verifying = Verifying(tmp_path)
    async with (
        open_broker(broker_url, name="test") as broker,
        open_store(f"sqlite:///{tmp_path / 's.db'}") as store,
    ):
        genuine = signed(refused(0, reason="unknown_key"), verifying)
        await fill(broker, genuine, refused(1, reason="unsigned"))
        async with verifying.running(broker, store, BrokerSettings()):
            (report,) = (await answer(broker_url, "replay", "--queue", "requests", "--watch", "5", check=1))[
                "replays"
            ]
        runs = (await store.runs(limit=10)).runs
        await wait_for_ready(broker, JOBS.dlq, 1)
        (left,) = (await answer(broker_url, "list"))["dead_letters"]
        whole = await answer(broker_url, "show", left["id"])
    assert len(report["sent"]) == 2
    assert [(each["id"], each["reason"]) for each in report["came_back"]] == [(left["id"], "unsigned")]
    assert [run.request_id for run in runs] == [genuine.correlation_id]
    assert SIGNATURE_HEADER not in whole["headers"]
    assert "replayed" in whole["history"][-1]
    assert json.loads(whole["body"])["request_id"] == left["request_id"]
