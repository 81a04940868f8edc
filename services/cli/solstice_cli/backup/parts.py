"""Names the databases of a set-up, their places and their migrations. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from solstice_cli.local import local_broker_url
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import (
    BROKER_URL_DESCRIPTION,
    is_postgresql,
    known_broker_url,
    shared_url,
    sqlite_path,
    without_password,
)
from solstice_common.storage.migrations import Migration, migrations_of
from solstice_forge.settings import InboxSettings
from solstice_forge.statuses.status_service import statuses_place
from solstice_orchestrator.settings import StoreSettings


class BackupSettings(InboxSettings, StoreSettings):
    """Where both services have their databases, and the embedded broker its file."""

    amqp_url: SecretUrl = Field(default_factory=local_broker_url, description=BROKER_URL_DESCRIPTION)

    @field_validator("amqp_url")
    @classmethod
    def _known_broker(cls, url: str) -> str:
        known_broker_url(url)
        return shared_url(url)


class BackupPart(StrEnum):
    """What a backup may hold, by the setting that names it."""

    STORE = "store"
    INBOX = "inbox"
    BROKER = "broker"


class DatabaseName(StrEnum):
    """The databases, in the order in which a restore puts them in place.

    The inbox is last: its unpublished requests are sent as soon as it is there, and it is marked by what the store has.
    """

    BROKER = "broker"
    STORE = "store"
    STATUSES = "statuses"
    INBOX = "inbox"


SETTINGS: Final[Mapping[DatabaseName, str]] = {
    DatabaseName.BROKER: "AMQP_URL",
    DatabaseName.STORE: "DATABASE_URL",
    DatabaseName.STATUSES: "FORGE_INBOX_URL",
    DatabaseName.INBOX: "FORGE_INBOX_URL",
}
_SCHEMAS: Final[Mapping[DatabaseName, str]] = {
    DatabaseName.STORE: "solstice_orchestrator.store.schema",
    DatabaseName.STATUSES: "solstice_forge.statuses.schema",
    DatabaseName.INBOX: "solstice_forge.inbox.schema",
}
_APPLIED: Final[Mapping[DatabaseName, str]] = {
    DatabaseName.STORE: "schema_migrations",
    DatabaseName.STATUSES: "statuses_migrations",
    DatabaseName.INBOX: "inbox_migrations",
}
_DATABASES: Final[Mapping[BackupPart, Sequence[DatabaseName]]] = {
    BackupPart.BROKER: (DatabaseName.BROKER,),
    BackupPart.STORE: (DatabaseName.STORE,),
    BackupPart.INBOX: (DatabaseName.STATUSES, DatabaseName.INBOX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDatabase:
    """One database of a set-up."""

    name: DatabaseName
    url: str

    @property
    def where(self) -> str:
        """Its place as it may be printed."""
        return without_password(self.url) if self.is_server else str(self.path)

    @property
    def is_server(self) -> bool:
        return is_postgresql(self.url)

    @property
    def kind(self) -> str:
        return "postgresql" if self.is_server else "sqlite"

    @property
    def path(self) -> Path:
        return sqlite_path(self.url)

    @property
    def applied_table(self) -> str:
        """The table of PostgreSQL that names the applied migrations."""
        return _APPLIED[self.name]

    @property
    def migrations(self) -> Sequence[Migration]:
        if self.name is DatabaseName.BROKER:
            return migrations_of("solstice_common.broker.embedded.schema")
        return migrations_of(f"{_SCHEMAS[self.name]}.{self.kind}")


def databases(settings: BackupSettings, only: Collection[BackupPart]) -> Sequence[PartDatabase]:
    """Return the databases of these parts, in order, without brokers that are servers."""
    inbox = settings.forge_inbox_url
    urls = {
        DatabaseName.BROKER: settings.amqp_url,
        DatabaseName.STORE: settings.database_url,
        DatabaseName.STATUSES: inbox if is_postgresql(inbox) else f"sqlite:///{statuses_place(inbox)}",
        DatabaseName.INBOX: inbox,
    }
    chosen = [name for part in BackupPart if part in only for name in _DATABASES[part]]
    return [
        PartDatabase(name=name, url=urls[name])
        for name in DatabaseName
        if name in chosen and (name is not DatabaseName.BROKER or urls[name].startswith("sqlite:"))
    ]
