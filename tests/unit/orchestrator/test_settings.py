"""Settings of the orchestrator: refusals, defaults and links."""

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.periodic import JITTER
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.stages.dispatch import POLL_SECONDS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capacity_map": "linux"}, "CAPACITY_MAP: 'linux' is not LABEL=SLOTS"),
        ({"git_protocols": "https,ext"}, "GIT_PROTOCOLS: must list some of"),
        ({"git_protocols": " "}, "GIT_PROTOCOLS: must list some of"),
        ({"public_url": "ci.example"}, "PUBLIC_URL: must be empty, or start with http"),
        (
            {"public_url": "https://mira:heron@ci.example"},
            "PUBLIC_URL: must be a URL for browsers, without user and password",
        ),
        (
            {"public_url": "https://ci .example"},
            "PUBLIC_URL: must be a URL for browsers, without user and password",
        ),
        ({"public_url": "https://"}, "PUBLIC_URL: must be a URL for browsers, without user and password"),
        (
            {"public_url": "https://ci.example/?a=b"},
            "PUBLIC_URL: must be a URL for browsers, without user and password",
        ),
        (
            {"deliveries_url": "https://heron@ci.example"},
            "DELIVERIES_URL: must be a URL for browsers, without user and password",
        ),
        (
            {"public_url": "https://ci.example:heron"},
            "PUBLIC_URL: must be a URL for browsers, without user and password",
        ),
        (
            {"untrusted_egress": "https://pypi.org"},
            "UNTRUSTED_EGRESS: 'https://pypi.org' is no host with or without a port; write for example pypi.org,*.debian.org:80",
        ),
        (
            {"untrusted_egress_private": "10.1.2.3/16"},
            "UNTRUSTED_EGRESS_PRIVATE: '10.1.2.3/16' is no network; write for example 10.1.0.0/16",
        ),
        ({"untrusted_egress_mib": -1}, "UNTRUSTED_EGRESS_MIB: "),
        ({"renew_seconds": 40}, "RENEW_SECONDS must be at most half of LEASE_SECONDS"),
        ({"executor": "magic"}, "EXECUTOR: "),
        ({"orchestrator_port": 70000}, "ORCHESTRATOR_PORT: "),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named_before_anything_starts(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        load_settings(OrchestratorSettings, **given)
    assert message in str(wrong.value)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:8081"),
        ({"orchestrator_host": "::1"}, "http://[::1]:8081"),
        ({"public_url": "https://ci.example/"}, "https://ci.example"),
        ({"orchestrator_port": 0}, None),
        ({"orchestrator_host": "::"}, None),
    ],
    ids=str,
)
def test_statuses_link_to_where_people_reach_the_pages(given: dict[str, object], url: str | None) -> None:
    assert load_settings(OrchestratorSettings, **given).pages_url == url


@pytest.mark.parametrize("failures", range(1, MAX_ATTEMPTS), ids=lambda failures: f"loss {failures}")
def test_the_jobs_of_a_lost_worker_run_elsewhere_within_90_seconds_by_default(
    failures: int,
) -> None:
    settings = OrchestratorSettings()
    longest_waits = (
        settings.lease_seconds,  # it renewed the moment before it died
        settings.rescue_seconds * (1 + JITTER),  # and the sweep had just run
        settings.retries.default.backoff_ceiling(failures),
        POLL_SECONDS * (1 + JITTER),  # the end of a backoff sends no notification
    )
    assert sum(longest_waits) < 90


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_database_of_postgresql_has_either_scheme(scheme: str) -> None:
    url = f"{scheme}://ci.example/jobs"
    assert load_settings(OrchestratorSettings, database_url=url).database_url == url


def test_another_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must start with sqlite:/// or postgresql://"):
        load_settings(OrchestratorSettings, database_url="mysql://ci.example/jobs")
