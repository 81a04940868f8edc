"""Requests by hand and schedules build private repositories, by http and by SSH."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.git_servers import AskingServer, git_backend, http_server
from tests.servers.lfs_store import LfsStore
from tests.servers.solstice_up import SolsticeUp, solstice_up
from tests.servers.ssh_server import make_key, ssh_server
from tests.used_folders import contents_in_use

TOKEN = "plaNted-0c5e8b21aa"
WHOLE = """
job "whole" {
    checkout depth=0 tags=#true submodules=#true lfs=#true
    step "look" run=#"test "$(git describe --tags)" = v1 -a -s pike/pike.txt && grep -c large large.bin"#
}
job "empty" {
    checkout none
    step "look" run=#"test -z "$(ls -A)""#
}
"""
PLAIN = """
defaults { checkout submodules=#true }
job "plain" { step "look" run="test -s pike/pike.txt" }
"""


class PrivatePlaces:
    """A private repository with two workflows, at its URL by each protocol."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asking = folder, AskingServer("ci", TOKEN)
        pike = Repository(folder / "root/river/pike")
        sha = pike.commit({"pike.txt": "k"})
        otter, self.store = Repository(folder / "root/river/otter"), LfsStore()
        files = {".solstice/workflow.kdl": WHOLE, ".solstice/plain.kdl": PLAIN}
        self.store.commit(otter, {"large.bin": b"large\n" * 999}, **files)
        self.sha = otter.commit_submodules({"pike": ("../../pike/.git", sha)})
        otter.git("tag", "v1")
        self.urls: dict[str, str] = {}

    def options(self, kind: str) -> tuple[str, ...]:
        path = () if kind == "http" else ("--workflow-path", ".solstice/plain.kdl")
        return ("--repo-url", self.urls[kind], *path)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePlaces]:
    folder = tmp_path_factory.mktemp("private")
    made = PrivatePlaces(folder)
    made.store.href = lambda origin, oid: f"{origin.replace('https', 'http', 1)}/content/{oid}"
    server = made.asking.handler(made.store.handler(git_backend(folder / "root")))
    (folder / "ssh").mkdir()
    with ssh_server(folder / "ssh") as ssh, http_server(server) as port:
        ssh.let_in(make_key(folder / "deploy-key"))
        (folder / "hosts").write_text(ssh.known_hosts)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        (folder / "credentials.toml").write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{port}/**"]\ntoken = "file:token"\nuser = "ci"\nhttp = "allowed"\n'
            f'[[rules]]\nrepositories = ["127.0.0.1:{ssh.port}/**"]\nssh_key = "file:deploy-key"\nknown_hosts = "hosts"\n'
        )
        made.urls = {
            "http": f"http://127.0.0.1:{port}/river/otter/.git",
            "ssh": f"ssh://{ssh.place}{folder}/root/river/otter/.git",
        }
        yield made


@pytest.fixture(scope="module")
def up(places: PrivatePlaces) -> Iterator[SolsticeUp]:
    rules = str(places.folder / "credentials.toml")
    options = ("--git-credentials", rules, "--git-protocols", "http,ssh")
    with solstice_up(places.folder / "home", *options) as running:
        yield running


@pytest.mark.parametrize("kind", ["http", "ssh"])
def test_a_request_by_hand_builds_the_whole_private_repository(
    kind: str, up: SolsticeUp, places: PrivatePlaces
) -> None:
    answer = up.json("enqueue", *places.options(kind), "--commit-sha", places.sha, "--wait", check=None)
    assert answer["run"]["state"] == "succeeded", up.api(f"/runs/{answer['run']['run_id']}")


@pytest.mark.parametrize("kind", ["http", "ssh"])
async def test_a_schedule_builds_the_branch_of_a_private_repository(
    kind: str, up: SolsticeUp, places: PrivatePlaces
) -> None:
    up.solstice("schedules", "add", kind, *places.options(kind), "--branch", "main", "--cron", "@yearly")
    up.solstice("schedules", "fire", kind)

    def last() -> dict[str, Any]:
        return json.loads(up.solstice("schedules", "show", kind, "--json").stdout)["last"] or {}

    await wait_until(lambda: last().get("run_state") in {"succeeded", "failed", "errored"})
    assert (last()["run_state"], last()["commit_sha"]) == ("succeeded", places.sha)


def test_the_services_keep_neither_token_nor_key(up: SolsticeUp, places: PrivatePlaces) -> None:
    # Another process may run the other tests of this module.
    for kind in ("http", "ssh"):
        up.json("enqueue", *places.options(kind), "--commit-sha", places.sha, "--wait", check=None)
    given = {authorization for _, authorization in places.asking.requests}
    assert given == {places.asking.authorization}
    key = (places.folder / "deploy-key").read_bytes().splitlines()[1]
    forms = (TOKEN.encode(), places.asking.authorization.removeprefix("Basic ").encode(), key)
    contents = contents_in_use(up.home)
    assert {"up.log"} < {path.name for path in contents}
    assert [path.name for path, content in contents.items() if any(form in content for form in forms)] == []
