"""Which subject a refusal of NATS is about."""

import pytest

from solstice_common.broker.jetstream.nats_records import denied_subject


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            'nats: permissions violation for publish to "$js.api.stream.msg.get.kv_solstice_topology"',
            ("publish", "$JS.API.STREAM.MSG.GET.KV_solstice_topology"),
        ),
        ('Permissions Violation for Publish to "solstice.info.v1"', ("publish", "solstice.info.v1")),
        (
            'permissions violation for subscription to "_inbox.otter.x.*"',
            ("subscribe", "_INBOX.otter.x.*"),
        ),
        ("nats: maximum connections exceeded", None),
    ],
)
def test_refusal_names_the_right_and_the_subject(error: str, expected: tuple[str, str] | None) -> None:
    assert denied_subject(error) == expected
