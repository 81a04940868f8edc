"""Pushes to private repositories are built with tokens that four forges have issued."""

import asyncio
import base64
import json
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.messages import Source
from tests.e2e.webhook_calls import push, secrets
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.certificates import authority
from tests.servers.forge_api import ForgeApi, Reply, Request, forge_api
from tests.servers.forge_git import SCOPES, ForgeGit
from tests.servers.forge_integration import forge_integration
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.used_folders import contents_in_use

MARK = "plaNted6e21"
WORKFLOW = 'job "build" { step "look" run="test -s hello.txt"; }'
SUCCESS = {"solstice": "success", "solstice/build": "success"}
KINDS = {
    "app of github": (Source.GITHUB, "river/otter"),
    "token of forgejo": (Source.FORGEJO, "river/otter"),
    "token of gitea": (Source.GITEA, "river/otter"),
    "project token of gitlab": (Source.GITLAB, "river/otter"),
    "deploy token of gitlab": (Source.GITLAB, "river/pike"),
}


class PrivateForges:
    """Four forges with private repositories, and the services of their operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repositories = {name: self._repository(name) for name in ("river/otter", "river/pike")}
        self.forges: dict[Source, ForgeApi] = {}
        self.gits: dict[Source, ForgeGit] = {}
        self.ports: dict[Source, int] = {}
        self.users: dict[str, str] = {}
        self.services: list[Any] = []
        self._pushed = 0

    def _repository(self, name: str) -> Repository:
        place = self.folder / "root" / name
        made = Repository(place)
        place.with_suffix(".git").symlink_to(place / ".git")
        return made

    async def open(self, stack: AsyncExitStack) -> None:
        """Start the forges, have the tokens made by their APIs, and start the services."""
        signer = authority(self.folder / "authority")
        certificate = signer.sign("forge")
        for origin in dict.fromkeys(origin for origin, _ in KINDS.values()):
            forge = await stack.enter_async_context(forge_api(origin))
            self.forges[origin], self.gits[origin] = forge, ForgeGit(forge, f"{MARK}-{origin}-")
            server = https_server(self.gits[origin].handler(git_backend(self.folder / "root")), certificate)
            self.ports[origin] = await asyncio.to_thread(stack.enter_context, server)
        rules = [await self._rule(kind) for kind in KINDS]
        (self.folder / "credentials.toml").write_text("\n".join(rules))
        config = self.folder / "sources.toml"
        config.write_text("\n".join(map(_source, self.forges.values())))
        shared_files = SharedFiles(directory=self.folder)
        for service in (
            forge_integration(shared_files, FORGE_CONFIG=str(config), **secrets()),
            orchestrator(
                shared_files,
                GIT_CREDENTIALS=str(self.folder / "credentials.toml"),
                GIT_PROTOCOLS="https",
                GIT_SSL_CAINFO=str(signer.certificate),
                EXECUTOR="process",
            ),
        ):
            self.services.append(await asyncio.to_thread(stack.enter_context, service))

    async def _rule(self, kind: str) -> str:
        origin, name = KINDS[kind]
        secret = self.folder / f"{kind.replace(' ', '-')}.secret"
        secret.touch(0o600)
        head = f'[[rules]]\nrepositories = ["127.0.0.1:{self.ports[origin]}/{name}"]\n'
        if origin is Source.GITHUB:
            forge = self.forges[origin]
            secret.write_text(forge.app_pem)
            api = f"{forge.url}{forge.base}"
            return f'{head}github_app = {{ id = {forge.app_id}, private_key = "file:{secret.name}", api_url = "{api}" }}\n'
        made = await self._made(kind)
        secret.write_text(made.get("token") or made["sha1"])
        self.users[kind] = made.get("username", "solstice")
        return f'{head}token = "file:{secret.name}"\nuser = "{self.users[kind]}"\n'

    async def _made(self, kind: str) -> dict[str, Any]:
        """What the forge's API answers to an operator who makes a token."""
        origin, name = KINDS[kind]
        forge = self.forges[origin]
        if origin is Source.GITLAB:
            what = "deploy_tokens" if "deploy" in kind else "access_tokens"
            path, headers = f"/projects/{name}/{what}", {"private-token": forge.token}
        else:
            account = base64.b64encode(f"ci:{forge.token}".encode()).decode()
            path, headers = "/users/ci/tokens", {"authorization": f"Basic {account}"}
        async with httpx2.AsyncClient(base_url=f"{forge.url}{forge.base}", trust_env=False) as client:
            answer = await client.post(path, headers=headers, json={"name": "ci", "scopes": [SCOPES[origin]]})
        made: dict[str, Any] = answer.raise_for_status().json()
        return made

    async def push(self, kind: str) -> str:
        """Push a new commit, and return it when the service has taken the delivery."""
        origin, name = KINDS[kind]
        self._pushed += 1
        files = {".solstice/workflow.kdl": WORKFLOW, "hello.txt": f"{self._pushed}\n"}
        commit = self.repositories[name].commit(files)
        url = f"https://127.0.0.1:{self.ports[origin]}/{name}.git"
        call = push(origin, url, commit, now=time.time(), full_name=name)
        async with httpx2.AsyncClient(base_url=self.services[0].url, trust_env=False) as client:
            answer = await client.post(f"/webhooks/{origin}", content=call.body, headers=dict(call.headers))
        assert answer.status_code == 202, answer.text
        return commit

    def files_with(self, forms: Collection[str]) -> list[str]:
        """The files that hold one of these texts, other than the operator's secrets."""
        contents = contents_in_use(self.folder)
        assert {"broker.db", "store.db", "inbox.db"} <= {path.name for path in contents}
        return [
            path.name
            for path, content in contents.items()
            if path.suffix != ".secret" and any(form.encode() in content for form in forms)
        ]

    def users_seen(self) -> dict[str, str]:
        """The user beside the token of each kind, as the forge saw it."""
        seen = {}
        for kind, (origin, name) in KINDS.items():
            given = {each[1].removeprefix("Basic ") for each in self.gits[origin].answers if each[0] == name}
            (seen[kind],) = {base64.b64decode(form).decode().partition(":")[0] for form in given}
        return seen

    async def shown(self, kind: str, commit: str) -> dict[str, str]:
        """What the commit shows when its run has ended."""
        forge = self.forges[KINDS[kind][0]]

        def states() -> dict[str, str]:
            return {key[2]: shown["state"] for key, shown in forge.shown.items() if key[1] == commit}

        await wait_until(lambda: states().get("solstice") in {"success", "failure", "error", "failed"})
        await wait_until(lambda: not {"pending", "running"} & set(states().values()))
        return states()


def _source(forge: ForgeApi) -> str:
    name = (
        "GITLAB_SIGNING_TOKEN" if forge.origin is Source.GITLAB else f"{forge.origin.upper()}_WEBHOOK_SECRET"
    )
    return (
        f'[sources.{forge.origin}]\nforge = "{forge.origin}"\nurl = "{forge.url}"\n'
        f'secrets = ["env:{name}"]\ntoken = "plain:{forge.token}"\n'
    )


@pytest.mark.timeout(240)
async def test_pushes_to_private_repositories_of_each_forge_are_built_with_its_tokens(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        places = PrivateForges(tmp_path)
        await places.open(stack)
        github = places.forges[Source.GITHUB]
        limits = [Reply(status=429, headers={"retry-after": "1"})]

        def limited_at_first(request: Request) -> Reply | None:
            return limits.pop() if limits and request.path.endswith("/installation") else None

        github.behave(limited_at_first)
        pushed = [(kind, await places.push(kind)) for kind in KINDS]
        shown = [await places.shown(kind, commit) for kind, commit in pushed]
        assert shown == [SUCCESS] * len(KINDS)
        assert limits == []
        assert places.users_seen() == {
            **places.users,
            "app of github": "x-access-token",
        }
        assert await places.shown("app of github", await places.push("app of github")) == SUCCESS
        assert list(github.tokens.values()) == [
            {"repositories": ["otter"], "permissions": {"contents": "read"}}
        ]
        answers = [each for git in places.gits.values() for each in git.answers]
        assert {status for _, _, status in answers} == {200}
        forms = {given.removeprefix("Basic ") for _, given, _ in answers}
        forms |= {base64.b64decode(form).decode().partition(":")[2] for form in forms}
        assert len(forms) == 2 * len(KINDS)
        events = json.dumps([service.events for service in places.services])
        statuses = repr([forge.history for forge in places.forges.values()])
        assert [form for form in forms if form in events or form in statuses] == []
        assert places.files_with(forms) == []
