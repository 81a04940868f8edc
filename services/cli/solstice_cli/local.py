"""The paths of the embedded default of this machine, for `up` and every other command."""

from pathlib import Path

from solstice_common.settings import state_directory


def local_broker_url() -> str:
    """Return the embedded broker that `solstice up` serves."""
    return sqlite_url("broker.sqlite")


def sqlite_url(name: str) -> str:
    """Return the URL of a SQLite file in the state directory."""
    return f"sqlite:///{state_directory() / name}"


def secrets_file() -> Path:
    """Webhook secrets that `solstice up` made; only its owner may read it."""
    return state_directory() / "webhook-secrets.json"
