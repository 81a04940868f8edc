"""The settings of the orchestrator: read once at start, validated whole, frozen."""

from solstice_orchestrator.settings.orchestrator_settings import EVERY_ADDRESS, OrchestratorSettings, split
from solstice_orchestrator.settings.store_settings import StoreSettings

__all__ = ["EVERY_ADDRESS", "OrchestratorSettings", "StoreSettings", "split"]
