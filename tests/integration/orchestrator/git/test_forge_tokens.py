"""git fetches with tokens of four forges that may read the repository."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.jobs import UNCOUNTED, Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from tests.builders import execution, job, job_request
from tests.executor_harness import open_harness, replace_executor
from tests.repositories import Repository
from tests.servers.certificates import Authority
from tests.servers.forge_api import ForgeApi, Reply, Reset, Trouble, forge_api
from tests.servers.forge_git import SCOPES, ForgeGit, IssuedToken
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server

MARK = "plaNted"
FORGES = (Source.GITHUB, Source.FORGEJO, Source.GITEA, Source.GITLAB)
STATIC = (Source.FORGEJO, Source.GITEA, Source.GITLAB)
"""The forges whose tokens an operator makes."""


class ForgeWithRepository:
    """A private repository at a forge, and an operator's rule for it."""

    def __init__(self, forge: ForgeApi, folder: Path, signer: Authority) -> None:
        self.forge, self.git, self.folder, self.port = forge, ForgeGit(forge, MARK), folder, 0
        self.repository = Repository(folder / "root" / "river" / "otter")
        self.sha = self.repository.commit({"hello.txt": "ahoy\n"})
        (folder / "root" / "river" / "otter.git").symlink_to("otter/.git")
        self.rules = folder / "credentials.toml"
        self.environment = {"PATH": os.environ["PATH"], "GIT_SSL_CAINFO": str(signer.certificate)}
        self._count = 0

    def write_rule(self, *, user: str = "") -> None:
        """Write the rule, with the App's key or the newest token."""
        secret = self.folder / "secret"
        secret.touch(0o600)
        if self.forge.origin is Source.GITHUB:
            secret.write_text(self.forge.app_pem)
            app = (
                f'id = {self.forge.app_id}, private_key = "file:secret", api_url = "{self.forge.url}/api/v3"'
            )
            access = f"github_app = {{ {app} }}"
        else:
            secret.write_text(list(self.git.issued)[-1])
            access = 'token = "file:secret"' + (f'\nuser = "{user}"' if user else "")
        self.rules.write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{self.port}/river/*"]\n{access}\n', encoding="utf-8"
        )

    def issue(self, **changes: str | None) -> None:
        """Make a token that reads the repository, or less."""
        fields = {"scope": SCOPES[self.forge.origin], "user": None, "repository": None, **changes}
        rights = IssuedToken(
            scopes=frozenset({str(fields["scope"])}), user=fields["user"], repository=fields["repository"]
        )
        self.git.issued[f"{MARK}{len(self.git.issued)}"] = rights

    @property
    def request(self) -> JobRequestV1:
        url = f"https://127.0.0.1:{self.port}/river/otter.git"
        return job_request(repo_url=url, commit_sha=self.sha, trusted=True)

    def policy(self, credentials: GitCredentials | None = None) -> GitPolicy:
        return GitPolicy(
            environment=self.environment, credentials=credentials or GitCredentials(str(self.rules), {})
        )

    async def check_out(self, credentials: GitCredentials | None = None) -> str:
        self._count += 1
        place = self.folder / f"place-{self._count}"
        policy = self.policy(credentials)
        await check_out(self.request, place, policy=policy, scratch=self.folder / "scratch")
        return (place / "hello.txt").read_text()

    async def failure(self) -> CheckoutFailed:
        with pytest.raises(CheckoutFailed) as caught:
            await self.check_out()
        assert MARK not in caught.value.detail
        assert not any(token in caught.value.detail for token in self.forge.tokens)
        return caught.value


@pytest.fixture
async def forge(
    request: pytest.FixtureRequest, tmp_path: Path, signer: Authority
) -> AsyncIterator[ForgeWithRepository]:
    async with AsyncExitStack() as stack:
        place = ForgeWithRepository(
            await stack.enter_async_context(forge_api(request.param)), tmp_path, signer
        )
        handler = place.git.handler(git_backend(tmp_path / "root"))
        server = https_server(handler, signer.sign("forge"))
        place.port = await asyncio.to_thread(stack.enter_context, server)
        if request.param in STATIC:
            place.issue()
        place.write_rule()
        yield place


@pytest.mark.parametrize("forge", FORGES, indirect=True)
async def test_git_fetches_with_the_token_of_each_forge(forge: ForgeWithRepository) -> None:
    assert await forge.check_out() == "ahoy\n"
    assert {status for _, _, status in forge.git.answers} == {200}


@pytest.mark.parametrize("forge", [Source.GITLAB], indirect=True)
async def test_a_deploy_token_of_gitlab_needs_its_user(forge: ForgeWithRepository) -> None:
    forge.issue(user="gitlab+deploy-token-7", repository="river/otter")
    forge.write_rule()
    assert "refused the credential (401)" in (await forge.failure()).detail
    forge.write_rule(user="gitlab+deploy-token-7")
    assert await forge.check_out() == "ahoy\n"


def revoked(forge: ForgeWithRepository) -> None:
    forge.git.revoked.add(list(forge.git.issued)[-1])


def of_another_repository(forge: ForgeWithRepository) -> None:
    forge.issue(repository="river/pike")


def without_the_right(forge: ForgeWithRepository) -> None:
    forge.issue(scope="read:user")


@pytest.mark.parametrize("forge", STATIC, indirect=True)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (revoked, "refused the credential (401): is it still valid?"),
        (of_another_repository, "it is not there, or not for us without credentials"),
        (without_the_right, "accepts no fetch of this repository with the credential (403)"),
    ],
    ids=["revoked", "of another repository", "without the right"],
)
async def test_a_token_that_may_not_read_the_repository_is_named_as_that(
    spoil: Callable[[ForgeWithRepository], None], words: str, forge: ForgeWithRepository
) -> None:
    spoil(forge)
    forge.write_rule()
    failed = await forge.failure()
    assert failed.reason is Reason.COMMIT_NOT_FOUND
    assert words in failed.detail


@pytest.mark.parametrize("forge", [Source.GITHUB], indirect=True)
async def test_a_refused_token_of_an_app_is_not_used_again(forge: ForgeWithRepository) -> None:
    credentials = GitCredentials(str(forge.rules), {})
    await forge.check_out(credentials)
    await forge.check_out(credentials)
    (token,) = forge.forge.tokens
    forge.git.revoked.add(token)
    with pytest.raises(CheckoutFailed, match=r"refused the credential \(401\)") as caught:
        await forge.check_out(credentials)
    assert caught.value.reason is Reason.CHECKOUT_FAILED
    assert not caught.value.host_away
    assert await forge.check_out(credentials) == "ahoy\n"
    assert len(forge.forge.tokens) == 2


@pytest.mark.parametrize("forge", [Source.GITHUB], indirect=True)
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=429, headers={"retry-after": "20"}), Reason.HOST_AWAY),
        (Reply(status=503), Reason.HOST_AWAY),
        (Reset(), Reason.HOST_AWAY),
        (Reply(status=404), Reason.CHECKOUT_FAILED),
    ],
    ids=["rate limit", "broken", "away", "not installed"],
)
async def test_without_a_token_git_asks_nothing_and_a_later_try_may_help(
    reply: Trouble, reason: Reason, forge: ForgeWithRepository
) -> None:
    forge.forge.next(reply)
    failed = await forge.failure()
    assert failed.reason is reason
    assert "there is no credential for" in failed.detail
    assert forge.git.answers == []


@pytest.mark.parametrize("forge", [Source.GITHUB], indirect=True)
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Reply(status=429, headers={"retry-after": "20"}), "the rate limit of"),
        (Reply(status=503), "failed itself when asked for a token (503)"),
        (Reset(), "cannot be asked for a token"),
    ],
    ids=["rate limit", "broken", "away"],
)
async def test_a_job_waits_for_a_token_without_using_up_an_attempt(
    trouble: Trouble, words: str, forge: ForgeWithRepository
) -> None:
    async def log(_: bytes) -> None:
        pass

    forge.forge.next(trouble)
    async with open_harness(forge.folder / "work", Repository(forge.folder / "unused")) as harness:
        checkout = SourceCheckout(git=forge.policy(), scratch=harness.workspaces.scratch)
        replace_executor(harness, checkout=checkout)
        outcome = await harness.executor.run(execution(job("true"), forge.request), log, asyncio.Event())
    assert outcome.reason is Reason.HOST_AWAY
    assert outcome.reason in UNCOUNTED
    assert words in (outcome.detail or "")
    assert not checkout.hosts.is_proven(forge.request.repo_url)
