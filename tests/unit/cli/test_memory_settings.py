"""Which commands take `memory:`, which no other process can open."""

from types import ModuleType

import pytest

from solstice_cli.commands.dead_letters.dlq_options import DeadLetterSettings
from solstice_cli.commands.enqueue import LocalEnqueueSettings
from solstice_cli.commands.topology import LocalBrokerSettings
from solstice_cli.up import UpSettings
from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_common.settings import SolsticeSettings, memory_notice
from solstice_forge.settings import DeliveriesSettings, ForgeSettings, InboxSettings, ReconcileSettings
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.settings.store_settings import StoreSettings

ALLOWED = [
    (UpSettings, "amqp_url"),
    (UpSettings, "database_url"),
    (UpSettings, "forge_inbox_url"),
    (OrchestratorSettings, "database_url"),
    (ForgeSettings, "forge_inbox_url"),
]
REFUSED = [
    (ForgeSettings, "amqp_url"),
    (OrchestratorSettings, "amqp_url"),
    (LocalEnqueueSettings, "amqp_url"),
    (DeadLetterSettings, "amqp_url"),
    (LocalBrokerSettings, "amqp_url"),
    (StoreSettings, "database_url"),
    (InboxSettings, "forge_inbox_url"),
    (ReconcileSettings, "forge_inbox_url"),
    (DeliveriesSettings, "forge_inbox_url"),
]


def named(value: object) -> str | None:
    return value.__name__ if isinstance(value, type | ModuleType) else None


@pytest.mark.parametrize(("model", "setting"), ALLOWED, ids=named)
def test_the_process_that_has_all_its_users_takes_it(model: type[SolsticeSettings], setting: str) -> None:
    assert getattr(load_settings(model, **{setting: "memory:"}), setting) == "memory:"


@pytest.mark.parametrize(("model", "setting"), REFUSED, ids=named)
def test_others_are_told_what_processes_can_share(model: type[SolsticeSettings], setting: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"within the process .*solstice up .*sqlite:///FILE"
    ) as raised:
        load_settings(model, **{setting: "memory:"})
    assert str(raised.value).startswith(f"{setting.upper()}: ")


def test_a_file_or_server_has_no_notice() -> None:
    assert memory_notice("store", "DATABASE_URL", "sqlite:///a.db") == {}
    (notice,) = memory_notice("store", "DATABASE_URL", "memory:").values()
    assert notice.startswith("degraded: ")
    assert "DATABASE_URL=sqlite:///FILE" in notice
