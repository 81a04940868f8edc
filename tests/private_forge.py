"""A git server that asks for a token, and an operator's files for it."""

import os
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.git import addresses
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.certificates import Authority
from tests.servers.git_servers import AskingServer

TOKEN = "plaNted-4f1c9e07d2"


class PrivateForge:
    """A repository behind a server that asks for a token, and an operator's files."""

    def __init__(self, folder: Path, signer: Authority) -> None:
        self.folder, self.signer, self.port = folder, signer, 0
        self.repository = Repository(folder / "root" / "river" / "otter")
        self.sha = self.repository.commit({"hello.txt": "ahoy\n", ".solstice/job.sh": "true\n"})
        self.asking = AskingServer("gitlab+deploy-token-7", TOKEN)
        self.token_file = folder / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.token_file.chmod(0o600)
        self.rules = folder / "credentials.toml"

    @property
    def url(self) -> str:
        return self.url_of("river/otter")

    def url_of(self, name: str) -> str:
        return f"https://127.0.0.1:{self.port}/{name}/.git"

    def add(self, name: str) -> Repository:
        """Make another repository on this server."""
        return Repository(self.folder / "root" / name)

    def write_rules(self, pattern: str = "river/**", more: str = "") -> None:
        self.rules.write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{self.port}/{pattern}"]\ntoken = "file:token"\n'
            f'user = "gitlab+deploy-token-7"\n{more}\n'
        )

    def hide_its_address(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Give the forge a name that no resolver knows; return its URL.

        Only the check of addresses is told where it is, so a connection can have its address from there alone.
        """

        async def resolve(*_: object) -> list[str]:
            return ["127.0.0.1"]

        monkeypatch.setattr(addresses, "_addresses", resolve)
        monkeypatch.setattr(addresses, "is_public", lambda _: True)
        self.rules.write_text(self.rules.read_text().replace("127.0.0.1", "forge.invalid"))
        return self.url.replace("127.0.0.1", "forge.invalid")

    def policy(self, **variables: str) -> GitPolicy:
        return GitPolicy(
            protocols=("https",),
            timeout_seconds=30,
            planning_timeout_seconds=30,
            environment={
                "PATH": os.environ["PATH"],
                "GIT_SSL_CAINFO": str(self.signer.certificate),
                **variables,
            },
            credentials=GitCredentials(str(self.rules), {}),
        )

    def request(self, **changes: Any) -> JobRequestV1:
        return job_request(
            **{
                "repo_url": self.url,
                "commit_sha": self.sha,
                "ref": "refs/heads/main",
                "trusted": True,
                **changes,
            }
        )

    async def check_out(
        self,
        policy: GitPolicy | None = None,
        spec: CheckoutSpec = PLAIN_CHECKOUT,
        objects: ObjectCache | None = None,
        **changes: Any,
    ) -> Path:
        source = self.folder / f"source-{len(list(self.folder.glob('source-*')))}"
        await check_out(
            self.request(**changes),
            source,
            policy=policy or self.policy(),
            scratch=self.folder / "scratch",
            objects=objects,
            spec=spec,
        )
        return source

    async def failure(
        self, policy: GitPolicy | None = None, spec: CheckoutSpec = PLAIN_CHECKOUT, **changes: Any
    ) -> CheckoutFailed:
        with pytest.raises(CheckoutFailed) as caught:
            await self.check_out(policy, spec, **changes)
        assert TOKEN not in caught.value.detail
        assert "127.0.0.1:" not in caught.value.detail.replace(f"127.0.0.1:{self.port}", "")
        return caught.value
