"""Renders the tables of the reference pages from the declarations in the code.

`python -m tests.reference` writes them into the pages, between their markers; `tests/unit/test_reference.py` fails when
a page says something else.
"""

import ast
import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo

import solstice_common.telemetry.log_events
import solstice_forge.log_events
import solstice_forge.metrics
import solstice_orchestrator.log_events
import solstice_orchestrator.metrics
from solstice_common.broker.capabilities import Certainty
from solstice_common.broker.dead_letters.reasons import ADVICE
from solstice_common.broker.embedded import embedded_broker
from solstice_common.broker.jetstream import jetstream_broker
from solstice_common.broker.rabbitmq import rabbitmq_broker
from solstice_common.broker.redis_streams import redis_broker
from solstice_common.settings import (
    AccessSettings,
    BrokerSettings,
    ClientSettings,
    HttpSettings,
    LogSettings,
    SolsticeSettings,
    state_directory,
)
from solstice_common.tracing.spans import SpanType
from solstice_common.tracing.trace_settings import TraceSettings
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings
from tests.architecture_tables import PACKAGES, contracts_table, modules_table, rooms_table
from tests.database_tables import SCHEMAS, differences_table, schema_tables
from tests.markdown import table
from tests.retention_table import retention_table
from tests.start_response import start_response_table
from tests.step_response import step_response_table

ROOT: Final = Path(__file__).parent.parent
ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"
CONFIGURATION: Final = ROOT / "docs" / "configuration.md"
BACKUPS: Final = ROOT / "docs" / "operations" / "backups.md"
DEAD_LETTERS: Final = ROOT / "docs" / "operations" / "dead-letters.md"
CAPACITY: Final = ROOT / "docs" / "operations" / "capacity.md"
TRACES: Final = ROOT / "docs" / "operations" / "traces.md"
REFERENCE: Final = ROOT / "docs" / "reference"


def settings_table(model: type[SolsticeSettings], *without: type[SolsticeSettings]) -> str:
    """One row per setting; those of `without` have tables of their own."""
    skipped = {name for other in without for name in other.model_fields}
    rows = [
        (
            f"`{name.upper()}`",
            "" if field.annotation is SecretStr else f"`--{name.replace('_', '-')}`",
            _kind(field),
            _default(field),
            field.description or "",
        )
        for name, field in model.model_fields.items()
        if name not in skipped
    ]
    return table(("environment", "flag", "type", "default", ""), rows)


def metrics_table(module: ModuleType) -> str:
    """One row per metric."""
    declared = module.Metrics.declared()
    rows = [
        (f"`{each.name}`", each.type, ", ".join(f"`{label}`" for label in each.labels), each.help)
        for each in declared
    ]
    return table(("metric", "type", "labels", ""), rows)


def capabilities_table() -> str:
    """One row per promise, one column per broker."""

    def shown(value: object) -> str:
        match value:
            case bool():
                return "yes" if value else "no"
            case None:
                return "does not apply"
            case Certainty.UNKNOWN:
                return "depends on the server"
            case float() | int():
                return f"{value:,.0f}".replace(",", " ") if value else "no"
            case tuple():
                return ", ".join(value) or "nothing"
            case _:
                return str(value)

    rows = [
        (words, *(shown(getattr(each, name)) for each in CAPABILITIES))
        for name, words in {
            "durable_on_confirm": "durable on confirm",
            "durable_when": "when it is",
            "failover_safe": "failover without loss",
            "delayed_retry": "a retried delivery waits",
            "priorities": "order by priority",
            "max_message_bytes": "largest body, bytes",
            "dedupe_window_seconds": "recognises repeats for, seconds",
            "counts_interruptions": "counts interruptions",
            "atomic_dead_letter": "dead letter in one step",
            "atomic_group": "one publish call all or nothing",
            "queue_measures": "tells of a queue, beside its depth",
            "backpressure": "takes no more",
        }.items()
    ]
    return table(("", *(each.transport for each in CAPABILITIES)), rows)


def reasons_table() -> str:
    """One row per reason of a dead letter, in the order of their declaration."""
    return table(
        ("reason", "what happened", "what to do"),
        [(f"`{reason}`", each.meaning, each.remedy) for reason, each in ADVICE.items()],
    )


def spans_table() -> str:
    """One row per span."""
    rows = [
        (
            f"`{each.name}`",
            each.service,
            each.kind.name,
            each.meaning,
            ", ".join(f"`{name}`" for name in each.attributes),
        )
        for each in (span.value for span in SpanType)
    ]
    return table(("span", "of", "kind", "", "attributes"), rows)


def log_events_table(module: ModuleType) -> str:
    """One row per log event: the sentence under its name in the source."""
    events: type[StrEnum] = module.LogEvent
    (declaration,) = (
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)
    )
    meaning_of: dict[str, str] = {}
    for statement, following in zip(declaration.body, declaration.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(following, ast.Expr):
            (target,) = statement.targets
            meaning_of[typing.cast("ast.Name", target).id] = str(ast.literal_eval(following.value))
    return table(
        ("event", ""), [(f"`{event.value}`", " ".join(meaning_of[event.name].split())) for event in events]
    )


CAPABILITIES: Final = (
    rabbitmq_broker.CAPABILITIES,
    embedded_broker.CAPABILITIES,
    embedded_broker.MEMORY_CAPABILITIES,
    redis_broker.CAPABILITIES,
    jetstream_broker.CAPABILITIES,
)

PAGES: Final[Mapping[Path, Mapping[str, Callable[[], str]]]] = {
    ARCHITECTURE: {
        f"rooms-{name}": functools.partial(rooms_table, package) for name, package in PACKAGES.items()
    },
    REFERENCE / "modules.md": {
        **{
            f"modules-{name}": functools.partial(modules_table, package) for name, package in PACKAGES.items()
        },
        "contracts": contracts_table,
    },
    CONFIGURATION: {
        "broker": lambda: settings_table(BrokerSettings),
        "access": lambda: settings_table(AccessSettings),
        "http": lambda: settings_table(HttpSettings),
        "logs": lambda: settings_table(LogSettings),
        "traces": lambda: settings_table(TraceSettings),
        "forge": lambda: settings_table(
            ForgeSettings, BrokerSettings, AccessSettings, HttpSettings, LogSettings, TraceSettings
        ),
        "orchestrator": lambda: settings_table(
            OrchestratorSettings, BrokerSettings, AccessSettings, HttpSettings, LogSettings, TraceSettings
        ),
        "client": lambda: settings_table(ClientSettings),
        "enqueue": lambda: settings_table(EnqueueSettings, BrokerSettings, ClientSettings),
    },
    TRACES: {"spans": spans_table},
    CAPACITY: {"step-response": step_response_table, "start-response": start_response_table},
    DEAD_LETTERS: {"dead-letter-reasons": reasons_table},
    REFERENCE / "brokers.md": {"capabilities": capabilities_table},
    REFERENCE / "database.md": {
        "database-postgresql": differences_table,
        **{f"database-{name}": functools.partial(schema_tables, name) for name in SCHEMAS},
    },
    BACKUPS: {"retention": retention_table},
    REFERENCE / "metrics.md": {
        "forge-metrics": lambda: metrics_table(solstice_forge.metrics),
        "orchestrator-metrics": lambda: metrics_table(solstice_orchestrator.metrics),
    },
    REFERENCE / "log-events.md": {
        "common-events": lambda: log_events_table(solstice_common.telemetry.log_events),
        "forge-events": lambda: log_events_table(solstice_forge.log_events),
        "orchestrator-events": lambda: log_events_table(solstice_orchestrator.log_events),
    },
}


def rendered(page: Path) -> str:
    """The page as it should be: its own text, with every table rendered again."""
    text = page.read_text("utf-8")
    for name, render in PAGES[page].items():
        start, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(start)
        if not found:
            raise LookupError(f"{page.name} has no place for the table {name!r}")
        text = f"{before}{start}{render()}{end}{rest.partition(end)[2]}"
    return text


def _kind(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(field.annotation))
    if isinstance(field.annotation, type) and issubclass(field.annotation, StrEnum):
        return " or ".join(f"`{choice.value}`" for choice in field.annotation)
    names = {str: "text", int: "number", float: "number", bool: "switch", Path: "path", SecretStr: "secret"}
    return names.get(typing.cast("type", field.annotation), str(field.annotation))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in {None, ""}:
        return ""
    # What depends on the machine is named, not shown.
    for here, name in (
        (str(state_directory()), "$SOLSTICE_HOME"),
        (f"linux={os.cpu_count()}", "linux=PROCESSORS"),
    ):
        value = str(value).replace(here, name)
    return f"`{value}`"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path), "utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
