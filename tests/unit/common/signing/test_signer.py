"""The messages that a publisher signs, and those it leaves unchanged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Broker, Message, Published, PublishStatus
from solstice_common.errors import ConfigurationError
from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.settings import SigningSettings
from solstice_common.signing.jws import is_genuine, read_signature
from solstice_common.signing.signer import signed, signing
from tests.signing import KeyPair

PAIR = KeyPair()


class RecordingBroker:
    def __init__(self) -> None:
        self.published: list[Message] = []

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self.published += messages
        return [Published(PublishStatus.CONFIRMED) for _ in messages]


def message(version: str, body: bytes, **headers: Any) -> Message:
    return Message(exchange="e", routing_key=version, body=body, type=version, headers=headers)


def opened(text: str) -> tuple[RecordingBroker, Broker]:
    broker = RecordingBroker()
    return broker, signing(cast("Broker", broker), SigningSettings(signing_keys=SecretStr(text)))


def test_without_keys_the_broker_is_the_one_it_was() -> None:
    broker, same = opened("  ")
    assert same is cast("Broker", broker)


def test_requests_and_cancels_are_signed_and_nothing_else_of_them_changes() -> None:
    messages = [
        message(JobRequestV1.VERSION, b"1", a=1),
        message(JobRequestV1.VERSION, b"2"),
        message("jobstatus.v1", b"3"),
        message(JobCancelV1.VERSION, b"4"),
        message(JobRequestV1.VERSION, b"5"),
    ]
    result = list(signed(messages, PAIR.signing))
    assert [each.body for each in result] == [b"1", b"2", b"3", b"4", b"5"]
    for before, after in zip(messages, result, strict=True):
        text = after.headers.get(SIGNATURE_HEADER)
        assert {**before.headers} == {
            name: value for name, value in after.headers.items() if name != SIGNATURE_HEADER
        }
        if before.type == "jobstatus.v1":
            assert text is None
            continue
        signature = read_signature(text)
        assert signature is not None
        assert signature.version == before.type
        assert is_genuine(signature, before.body, PAIR.verify)


def test_the_signature_stands_first_and_takes_the_place_of_an_earlier_one() -> None:
    (after,) = signed([message(JobRequestV1.VERSION, b"1", a=1, **{SIGNATURE_HEADER: "old"})], PAIR.signing)
    assert list(after.headers) == [SIGNATURE_HEADER, "a"]
    signature = read_signature(after.headers[SIGNATURE_HEADER])
    assert signature is not None
    assert is_genuine(signature, b"1", PAIR.verify)


@pytest.mark.parametrize("inline", [True, False])
async def test_keys_come_from_files_or_inline_and_the_first_signs(tmp_path: Path, inline: bool) -> None:
    second = KeyPair("second")
    files = f"{PAIR.write(tmp_path)}, {second.write(tmp_path)}"
    both = json.dumps({"keys": [json.loads(PAIR.text), json.loads(second.text)]})
    broker, signs = opened(both if inline else files)
    await signs.publish([message(JobRequestV1.VERSION, b"1")])
    signature = read_signature(broker.published[0].headers[SIGNATURE_HEADER])
    assert signature is not None
    assert signature.key_name == "forge"


async def test_a_private_key_that_is_replaced_signs_from_then_on(tmp_path: Path) -> None:
    path = PAIR.write(tmp_path)
    broker, signs = opened(str(path))
    for text in (PAIR.text, KeyPair("second").text):
        path.write_text(text)
        await signs.publish([message(JobRequestV1.VERSION, b"1")])
    names = [read_signature(each.headers[SIGNATURE_HEADER]) for each in broker.published]
    assert [name and name.key_name for name in names] == ["forge", "second"]


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "/nowhere/key.json",
        "{",
        '{"keys":[]}',
        '{"kty":"oct","k":"secret-text"}',
        """'{"d":"secret-text","kty":"OKP"}'""",
        "secret-text",
        "secret-text" * 1000,
    ],
)
def test_keys_that_cannot_be_used_are_reported_without_what_they_are(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SIGNING_KEYS") as raised:
        opened(text)
    assert "secret-text" not in str(raised.value)
