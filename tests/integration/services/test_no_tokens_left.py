"""When the last token is revoked, the log says so at once, then `/readyz`."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2
import pytest

from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.tokens import make_token

Starting = Callable[..., AbstractContextManager[ForgeProcess | OrchestratorProcess]]
SERVICES = pytest.mark.parametrize(
    "starting", [forge_integration, orchestrator], ids=["forge-integration", "orchestrator"]
)
SECRET = {"FORGEJO_WEBHOOK_SECRET": "four-sails-in-the-wind"}


def ready(url: str) -> httpx2.Response:
    return httpx2.get(f"{url}/readyz", trust_env=False, timeout=30)


def revoke_all(tokens: Path) -> None:
    change(tokens, lambda _: [])


@SERVICES
async def test_a_service_says_at_once_that_its_last_token_is_gone(tmp_path: Path, starting: Starting) -> None:
    tokens = tmp_path / "tokens.json"
    make_token(tokens, "reader", TokenScope.READ)
    with starting(SharedFiles(directory=tmp_path), **SECRET) as process:
        assert ready(process.url).json()["notices"] == {}
        revoke_all(tokens)
        # No request comes in between: the service looks by itself.
        reported = await asyncio.to_thread(process.logged, "access.no_tokens_left")
        assert reported["tokens"] == str(tokens)
        answer = ready(process.url)
        # Webhooks are still taken and jobs still run, so it is as ready as it was before.
        assert (answer.status_code, answer.json()["missing"]) == (200, {})
        notice = answer.json()["notices"]["access"]
        assert str(tokens) in notice
        assert "solstice token create" in notice
        make_token(tokens, "operator", TokenScope.OPERATE)
        assert ready(process.url).json()["notices"] == {}


@SERVICES
async def test_a_service_that_starts_with_an_empty_token_file_says_so(
    tmp_path: Path, starting: Starting
) -> None:
    tokens = tmp_path / "tokens.json"
    make_token(tokens, "reader", TokenScope.READ)
    revoke_all(tokens)
    with starting(SharedFiles(directory=tmp_path), **SECRET) as process:
        assert (await asyncio.to_thread(process.logged, "access.no_tokens_left"))["tokens"] == str(tokens)
        assert "access" in ready(process.url).json()["notices"]
