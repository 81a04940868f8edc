"""The file of sources in a service: addresses by name, several live secrets, rules."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from solstice_common.broker import open_broker
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority, Source
from solstice_forge.forges.samples import push_body, sign
from solstice_forge.settings import ForgeSettings
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import received

OLD, NEW = "the old secret", "the new secret"
FILE = """
[sources.acme]
forge = "forgejo"
secrets = ["file:new", "file:old"]
[[sources.acme.rules]]
repositories = ["river/*"]
branches = ["main"]
priority = "high"
runs-on = "illumos"

[sources.hub]
forge = "github"
secrets = ["plain:a secret of its own"]
"""


@pytest.fixture
def settings(make_settings: MakeSettings, tmp_path: Path) -> ForgeSettings:
    (tmp_path / "old").write_text(f"{OLD}\n")
    (tmp_path / "new").write_text(NEW)
    (tmp_path / "forges.toml").write_text(FILE)
    return make_settings(forge_config=str(tmp_path / "forges.toml"))


@pytest.fixture
async def client(settings: ForgeSettings, running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with running(settings) as opened:
        yield opened


async def push(
    client: httpx2.AsyncClient,
    *,
    secret: str = NEW,
    repository: str = "river/otter",
    branch: str = "main",
    name: str = "acme",
    sha: str = "a" * 40,
) -> httpx2.Response:
    """A push signed as by Forgejo, which sends GitHub's headers as well."""
    body = push_body(
        Source.FORGEJO,
        repo_url=f"https://forge.example/{repository}.git",
        repo_full_name=repository,
        ref=f"refs/heads/{branch}",
        sha=sha,
    )
    headers = sign(
        Source.FORGEJO, secret, event="push", body=body, delivery_id=f"{repository}-{sha}", now=1.79e9
    )
    return await client.post(f"/webhooks/{name}", content=body, headers=headers)


async def test_push_to_a_named_source_is_built_as_its_rule_says(
    client: httpx2.AsyncClient, settings: ForgeSettings
) -> None:
    assert (await push(client)).status_code == 202
    async with open_broker(settings.amqp_url, name="test") as broker:
        (request,) = await received(broker, settings, 1)
    assert (request.source, request.source_name) == (Source.FORGEJO, "acme")
    assert (request.priority, request.runs_on) == (Priority.HIGH, "illumos")


async def test_every_live_secret_is_believed_and_no_other(client: httpx2.AsyncClient) -> None:
    assert (await push(client, secret=OLD, sha="b" * 40)).status_code == 202
    assert (await push(client, secret="a secret of its own", sha="c" * 40)).status_code == 401


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"repository": "lake/heron"}, "no_rule"), ({"branch": "next"}, "branch_not_built")],
)
async def test_what_a_rule_refuses_is_ignored_with_its_reason(
    client: httpx2.AsyncClient, changes: dict[str, str], reason: str
) -> None:
    answer = await push(client, **changes)
    assert (answer.status_code, answer.json()["decision"], answer.json()["reason"]) == (
        200,
        "ignored",
        reason,
    )


async def test_headers_never_choose_the_source_its_forge_or_its_secret(client: httpx2.AsyncClient) -> None:
    """A delivery signed for Forgejo comes to the address of a GitHub source."""
    assert (await push(client, name="hub")).status_code == 401


async def test_address_by_a_forge_s_own_name_is_gone(client: httpx2.AsyncClient) -> None:
    answer = await push(client, name="forgejo")
    assert answer.status_code == 404
    assert "FORGE_CONFIG" in answer.json()["error"]


async def test_service_does_not_start_with_a_mistake_in_the_file(
    settings: ForgeSettings, running: Running, tmp_path: Path
) -> None:
    (tmp_path / "new").unlink()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(settings):
            pass
    (error,) = [each for each in caught.value.exceptions if isinstance(each, ConfigurationError)]
    assert "sources.acme.secrets[1]" in str(error)
