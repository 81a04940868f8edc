"""Every setting that looks like a secret is marked as one, or known as harmless."""

import importlib
import os
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

import solstice_cli
import solstice_common
import solstice_forge
import solstice_orchestrator
from solstice_cli.up import UpSettings
from solstice_common.runtime import hidden_secrets
from solstice_common.runtime.hidden_secrets import hide_secrets, may_hold_secret
from solstice_common.settings import BrokerSettings, SolsticeSettings, WebAddress
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings

SUSPECT_NAME = re.compile(
    "address|auth|cert|cookie|credential|dsn|host|key|pass|proxy|secret|server|token|ur[il]s?$"
)
SUSPECT_DESCRIPTION = re.compile(r"://|password|secret\b|private key", re.IGNORECASE)
PLANTED = "planted-heron"
URLS = {
    "amqp_url": f"amqp://joe:{PLANTED}@127.0.0.1/",
    "database_url": f"postgresql://joe:{PLANTED}@127.0.0.1/x",
    "forge_inbox_url": f"postgresql://joe:{PLANTED}@127.0.0.1/x",
    "otel_exporter_otlp_endpoint": f"http://joe:{PLANTED}@127.0.0.1:4318",
    "otel_exporter_otlp_headers": f"authorization={PLANTED}",
}
HARMLESS = {
    "amqp_password_file": "the name of a file",
    "amqp_routing_key": "a name on the broker",
    "cache_bucket": "the name of a bucket",
    "cache_credentials": "the name of a file",
    "cache_endpoint": "an address in which no user can stand",
    "forge_host": "an address to listen on",
    "git_credentials": "the name of a file",
    "orchestrator_host": "an address to listen on",
    "secrets_config": "the name of a file",
    "solstice_tokens": "the name of a file",
    "verify_keys": "the name of a file",
}
"""Settings that look like secrets, and why they hold none."""


def all_settings() -> list[type[SolsticeSettings]]:
    for package in (solstice_common, solstice_forge, solstice_orchestrator, solstice_cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, todo = list[type[SolsticeSettings]](), [SolsticeSettings]
    while todo:
        found += (below := todo.pop().__subclasses__())
        todo += below
    return [each for each in found if each.__module__.startswith("solstice_")]


def may_be_secret(name: str, field: FieldInfo) -> bool:
    """Whether a text of that name or description could contain a secret."""
    is_text = field.annotation in {str, Path, SecretStr} or str in get_args(field.annotation)
    return is_text and bool(SUSPECT_NAME.search(name) or SUSPECT_DESCRIPTION.search(field.description or ""))


def is_web_address(field: FieldInfo) -> bool:
    return set(get_args(WebAddress)[1:]) <= set(field.metadata)


def test_every_setting_that_looks_like_a_secret_is_judged() -> None:
    suspects = {
        (model.__name__, name): field
        for model in all_settings()
        for name, field in model.model_fields.items()
        if may_be_secret(name, field)
    }
    assert len(suspects) > 40
    unjudged = {
        place
        for place, field in suspects.items()
        if not may_hold_secret(field) and not is_web_address(field) and place[1] not in HARMLESS
    }
    assert unjudged == set()
    assert {name for _, name in suspects} >= HARMLESS.keys()


def test_a_web_address_holds_no_password() -> None:
    names = [name for name, field in UpSettings.model_fields.items() if is_web_address(field)]
    assert len(names) >= 3
    for name in names:
        for url in (f"https://joe:{PLANTED}@forge.example", f"https://forge.example?token={PLANTED}"):
            with pytest.raises(ValidationError) as raised:
                UpSettings.model_validate({name: url})
            assert PLANTED not in str(raised.value.errors(include_url=False, include_input=False)[0]["msg"])


@pytest.mark.parametrize("model", [ForgeSettings, OrchestratorSettings, UpSettings])
@pytest.mark.parametrize("write", [str.upper, str.lower], ids=["upper", "lower"])
def test_no_secret_of_any_setting_stays_in_the_environment(
    model: type[BrokerSettings], write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_secrets, "make_undumpable", lambda: None)
    judged = [name for name, field in model.model_fields.items() if may_hold_secret(field)]
    for name in judged:
        monkeypatch.setenv(write(name), URLS.get(name, PLANTED))
    settings = model()
    assert settings.amqp_url == URLS["amqp_url"]
    environ = hide_secrets(settings)
    assert sum(PLANTED in value for value in environ.values()) == len(judged) >= 2
    assert [name for name, value in os.environ.items() if PLANTED in value] == []


@pytest.mark.parametrize("setting", ["forge_config", "secrets_config"])
def test_a_file_that_may_refer_to_variables_keeps_none_of_them_in_the_environment(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_secrets, "make_undumpable", lambda: None)
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", PLANTED)
    monkeypatch.setenv(setting.upper(), str(tmp_path / "file.toml"))
    environ = hide_secrets(UpSettings())
    assert environ["GITHUB_WEBHOOK_SECRET"] == PLANTED
    assert "GITHUB_WEBHOOK_SECRET" not in os.environ
