"""No secret has a flag, and help names the variables for passwords."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from solstice_cli.main import app as solstice
from solstice_cli.up import UpSettings
from solstice_common.cli.lazy import loaded
from solstice_common.cli.options import FOR_PASSWORDS
from solstice_common.runtime.hidden_secrets import may_hold_secret
from solstice_common.settings import ClientSettings, SolsticeSettings
from solstice_forge.cli import app as forge_integration
from solstice_orchestrator.cli import app as orchestrator

SECRET_NAME = re.compile("secret|token|password|key|auth|credential")
HARMLESS = {
    "--amqp-password-file",
    "--amqp-routing-key",
    "--cache-credentials",
    "--git-credentials",
    "--idempotency-key",
    "--secrets-config",
    "--solstice-tokens",
    "--verify-keys",
}
"""Flags that look like secrets: names of files, and names on the broker."""


def options(command: Any, words: str) -> Iterator[tuple[str, str]]:
    """Each flag of each command below, as `COMMAND --FLAG`, and its help."""
    for name, below in getattr(command, "commands", {}).items():
        yield from options(below, f"{words} {name}")
    for option in command.params:
        if option.param_type_name == "option":
            yield from ((f"{words} {flag}", option.help or "") for flag in option.opts)


FLAGS = {
    flag: text
    for words, app in (
        ("solstice", solstice),
        ("forge-integration", forge_integration),
        ("orchestrator", orchestrator),
    )
    for flag, text in options(loaded(app), words)
}


def settings_that_may_hold_secrets(*models: type[SolsticeSettings]) -> set[str]:
    return {name for model in models for name, field in model.model_fields.items() if may_hold_secret(field)}


def test_no_secret_has_a_flag() -> None:
    assert len(FLAGS) > 500
    found = {flag for flag in FLAGS if SECRET_NAME.search(flag.rpartition(" ")[2])}
    assert {flag for flag in found if flag.rpartition(" ")[2] not in HARMLESS} == {
        "solstice load --secret",
        "solstice webhook send --secret",
    }


@pytest.mark.parametrize("setting", sorted(settings_that_may_hold_secrets(UpSettings, ClientSettings)))
def test_flag_of_a_url_names_the_variable_for_a_password(setting: str) -> None:
    texts = [text for flag, text in FLAGS.items() if flag.endswith(f" --{setting.replace('_', '-')}")]
    assert bool(texts) == setting.endswith(("_url", "_endpoint"))
    assert [text for text in texts if f"({setting.upper()}{FOR_PASSWORDS})" not in text] == []


def test_url_of_the_management_api_can_be_given_in_a_variable() -> None:
    texts = {flag: text for flag, text in FLAGS.items() if flag.endswith(" --management-url")}
    assert {"topology", "dlq"} == {flag.split()[-3] for flag in texts}
    assert all(f"(MANAGEMENT_URL{FOR_PASSWORDS})" in text for text in texts.values())
