"""`schemas/` is byte for byte what the code renders, and usable from other languages."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from solstice_common.broker import Delivered
from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import refusal_headers
from solstice_common.errors import InvalidMessage
from solstice_common.messages import MESSAGES, JobCancelV1, JobRequestV1, JobStatusV1, Source
from solstice_common.messages.schemas import render_schemas
from solstice_common.settings import BrokerSettings
from solstice_common.topology import QueueType, Topology, full_topology
from solstice_common.values.times import parse_timestamp

SCHEMAS = Path(__file__).parents[2] / "schemas"
EXAMPLES = sorted((SCHEMAS / "examples").glob("*.json"))
INVALID = sorted((SCHEMAS / "examples" / "invalid").glob("**/*.json"))
"""Of `jobrequest.v1`; those of another message are in a folder of its name."""
MODELS = {model.VERSION: model for model in MESSAGES}
BEYOND_A_SCHEMA = {"oversize", "not_utf8", "not_json"}


def name(path: Path) -> str:
    return path.stem


Model = type[JobRequestV1 | JobCancelV1 | JobStatusV1]


def model_of(path: Path) -> Model:
    return MODELS[".".join(path.name.split(".")[:2])]  # type: ignore[return-value]  # MESSAGES holds these


def refused_by(path: Path) -> Model:
    return MODELS.get(path.parent.name, JobRequestV1)  # type: ignore[return-value]  # MESSAGES holds these


def schema_of(version: str) -> Any:
    return json.loads((SCHEMAS / f"{version}.json").read_bytes())


class TestRendering:
    def test_there_is_one_schema_per_message_and_no_other(self) -> None:
        assert {path.name for path in SCHEMAS.glob("*.json")} == set(render_schemas())

    @pytest.mark.parametrize("file", render_schemas())
    def test_the_file_equals_its_model(self, file: str) -> None:
        expected = render_schemas()[file]
        assert (SCHEMAS / file).read_bytes() == expected, "run `solstice schema write`"

    @pytest.mark.parametrize("version", MODELS)
    def test_it_is_a_schema_that_allows_unknown_fields_and_explains_every_list(self, version: str) -> None:
        schema = schema_of(version)
        Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is True
        assert set(schema["properties"]) == set(MODELS[version].model_fields)
        assert schema["properties"]["schema_version"]["const"] == version


class TestExamples:
    @pytest.mark.parametrize("path", EXAMPLES, ids=name)
    def test_decoding_and_encoding_gives_the_file_again(self, path: Path) -> None:
        body = path.read_bytes()
        assert model_of(path).decode(body).encode() == body

    @pytest.mark.parametrize("path", EXAMPLES, ids=name)
    def test_it_satisfies_the_json_schema(self, path: Path) -> None:
        Draft202012Validator(schema_of(model_of(path).VERSION)).validate(json.loads(path.read_bytes()))

    @pytest.mark.parametrize("path", EXAMPLES, ids=name)
    def test_plain_json_libraries_can_write_it(self, path: Path) -> None:
        document = json.loads(path.read_bytes())
        plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert plain.encode() == path.read_bytes()

    def test_every_field_and_every_source_is_shown(self) -> None:
        shown: dict[str, set[str]] = {version: set() for version in MODELS}
        sources: set[str] = set()
        for path in EXAMPLES:
            document = json.loads(path.read_bytes())
            shown[document["schema_version"]].update(document)
            sources.add(document["source"])
        for version, model in MODELS.items():
            assert set(model.model_fields) <= shown[version]
        assert sources == set(Source)

    def test_unknown_fields_are_shown_for_every_message(self) -> None:
        for version, model in MODELS.items():
            document = json.loads((SCHEMAS / "examples" / f"{version}.unknown-fields.json").read_bytes())
            assert set(document) - set(model.model_fields)


class TestInvalidExamples:
    @pytest.mark.parametrize("path", INVALID, ids=name)
    def test_it_is_refused_with_the_reason_in_its_name(self, path: Path) -> None:
        reason, _, what = path.stem.partition(".")
        with pytest.raises(InvalidMessage) as raised:
            refused_by(path).decode(path.read_bytes())
        assert raised.value.reason == reason
        if reason == "invalid_field":
            assert raised.value.detail.startswith(f"{what.partition('-')[0]}: ")

    @pytest.mark.parametrize(
        "path", [path for path in INVALID if path.stem.partition(".")[0] not in BEYOND_A_SCHEMA], ids=name
    )
    def test_the_json_schema_refuses_it_too(self, path: Path) -> None:
        with pytest.raises(ValidationError):
            Draft202012Validator(schema_of(refused_by(path).VERSION)).validate(json.loads(path.read_bytes()))

    def test_every_reason_of_the_models_is_shown_except_for_size(self) -> None:
        shown = {path.stem.partition(".")[0] for path in INVALID}
        assert shown == {"not_utf8", "not_json", "not_an_object", "unknown_version", "invalid_field"}


@pytest.fixture(scope="module")
def asyncapi() -> Any:
    return yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def channels(asyncapi: Any) -> list[Any]:
    """Every channel; one with a parameter for each of its values."""
    found = []
    for channel in asyncapi["channels"].values():
        text, names = json.dumps(channel), channel.get("parameters", {"none": {"enum": [""]}})
        ((name, parameter),) = names.items()
        found += [json.loads(text.replace(f"{{{name}}}", value)) for value in parameter["enum"]]
    return found


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> Topology:
    for field in BrokerSettings.model_fields:
        monkeypatch.delenv(field.upper(), raising=False)
    return full_topology(BrokerSettings(amqp_queue_type=QueueType.QUORUM.value, amqp_priorities="split"))


def references(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for part in node:
            yield from references(part)


class TestAsyncApi:
    def test_it_is_of_the_version_it_claims_and_has_its_parts(self, asyncapi: Any) -> None:
        assert asyncapi["asyncapi"] == "3.0.0"
        assert {"info", "servers", "channels", "operations", "components"} <= set(asyncapi)

    def test_every_reference_leads_somewhere(self, asyncapi: Any) -> None:
        found = list(references(asyncapi))
        assert found
        for reference in found:
            file, _, pointer = reference.partition("#")
            if file:
                assert (SCHEMAS / file).is_file()
                continue
            node = asyncapi
            for part in pointer.removeprefix("/").split("/"):
                node = node[part]

    def test_exchanges_are_those_of_the_topology(self, channels: list[Any], topology: Topology) -> None:
        reported = {}
        for channel in channels:
            for exchange in (
                channel["bindings"]["amqp"].get("exchange"),
                channel.get("x-dead-letter-exchange"),
            ):
                if exchange is not None:
                    assert exchange["durable"] is True
                    reported[exchange["name"]] = exchange["type"]
        assert reported == {exchange.name: exchange.kind for exchange in topology.exchanges}

    def test_queues_and_their_arguments_are_those_of_the_topology(
        self, channels: list[Any], topology: Topology
    ) -> None:
        reported = {}
        for channel in channels:
            if queue := channel["bindings"]["amqp"].get("queue"):
                assert queue["durable"] is True
                assert channel["address"] == queue["name"]
                reported[queue["name"]] = channel["x-arguments"]
        assert reported == {queue.name: dict(queue.arguments) for queue in topology.queues}

    def test_routing_keys_are_those_of_the_topology(self, channels: list[Any], topology: Topology) -> None:
        reported = {
            (channel["bindings"]["amqp"]["exchange"]["name"], channel["address"])
            for channel in channels
            if channel["bindings"]["amqp"]["is"] == "routingKey"
        }
        keyed = {
            (binding.exchange, binding.routing_key) for binding in topology.bindings if binding.routing_key
        }
        assert reported == keyed

    def test_messages_and_their_payloads_are_those_of_the_code(self, asyncapi: Any) -> None:
        messages = asyncapi["components"]["messages"]
        for version in MODELS:
            assert messages[version]["payload"]["schema"]["$ref"] == f"./{version}.json"
            assert messages[version]["bindings"]["amqp"]["messageType"] == version
        assert set(messages) == {*MODELS, *(f"{version}.dead" for version in MODELS)}

    def test_dead_letter_headers_are_those_we_write(self, asyncapi: Any) -> None:
        schema = asyncapi["components"]["schemas"]["deadLetterHeaders"]
        written = refusal_headers(
            Delivered(body=b"", tag=None),
            Refuse(reason="not_json", detail="x"),
            queue="solstice.jobs.v1",
            by="orchestrator",
            at=parse_timestamp("2026-01-31T12:00:00Z"),
        )
        assert set(schema["properties"]) == set(written)
        Draft202012Validator(schema).validate(written)
