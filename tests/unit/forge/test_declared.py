"""Log events and metrics are declared once."""

import re
from pathlib import Path

import solstice_forge
from solstice_common.broker.protocol import BrokerHealth, PublishStatus
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.settings import ForgeSettings

CODE = [path.read_text("utf-8") for path in Path(solstice_forge.__path__[0]).rglob("*.py")]


def test_every_log_call_names_a_declared_event() -> None:
    calls = [
        event_name
        for text in CODE
        for event_name in re.findall(
            r"(?:\blog\.(?:debug|info|warning|error|exception)\((?:\s|#[^\n]*\n)*|\bfailed=|\b(?:paused|resumed|refused|crashed)=(?=LogEvent))([\w.]+)",
            text,
        )
        # What `periodic` logs is named where it is called.
        if event_name.startswith("LogEvent.") or f"failed={event_name}" not in text
    ]
    assert {event_name for event_name in calls if not event_name.startswith("LogEvent.")} == set()
    assert {event_name.removeprefix("LogEvent.") for event_name in calls} == {
        event.name for event in LogEvent
    }


def test_log_events_are_dotted_facts() -> None:
    for event in LogEvent:
        assert re.fullmatch(
            r"(forge|webhook|relay|lookups?|status(?:es)?|checks|job|deliveries|retention|reconcile|traces)\.[a-z_]+",
            event.value,
        )


def test_metrics_are_rendered_as_declared() -> None:
    metrics = Metrics()
    metrics.delivery("github", "accepted", "push", 0.01)
    metrics.published(PublishStatus.CONFIRMED, 3)
    text = metrics.render(2, BrokerHealth(connected=True, blocked="low on memory")).decode()
    for declared in metrics.declared():
        assert declared.name.startswith("solstice_forge_")
        assert f"# TYPE {declared.name} {declared.type}" in text
        assert declared.help.endswith(".")
    assert "solstice_forge_inbox_backlog 2.0" in text
    assert 'solstice_forge_publishes_total{status="confirmed"} 3.0' in text
    assert "solstice_forge_broker_blocked 1.0" in text


def test_every_setting_says_what_it_is_for() -> None:
    for name, field in ForgeSettings.model_fields.items():
        assert field.description, name
