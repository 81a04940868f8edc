"""Attempts after infrastructure failures are settings."""

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.settings.retry_settings import RetrySettings


def test_retries_are_settings_and_labels_may_have_others() -> None:
    settings = load_settings(
        RetrySettings, max_attempts=4, retry_base_seconds=1, retry_jitter=0, label_retries="arm=1:2"
    )
    assert settings.retries.of("linux").max_attempts == 4
    assert (settings.retries.of("arm").max_attempts, settings.retries.of("arm").base_seconds) == (1, 2.0)
    assert settings.retries.of("arm").jitter == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"retry_base_seconds": 10, "retry_max_seconds": 5}, "RETRY_BASE_SECONDS"),
        ({"label_retries": "arm"}, "LABEL_RETRIES: 'arm' is not LABEL=ATTEMPTS"),
        ({"max_attempts": 0}, "MAX_ATTEMPTS"),
        ({"retry_jitter": 1.5}, "RETRY_JITTER"),
    ],
    ids=str,
)
def test_retries_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_settings(RetrySettings, **given)
