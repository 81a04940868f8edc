"""Real git fetches through a real SSH server, with deploy keys that ssh never gets."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.credentials.ssh_agent import SshCredential, open_agent
from solstice_orchestrator.git.credentials.ssh_signing import SshSigner, deploy_key
from tests.builders import job_request
from tests.git_memory import git_memory
from tests.repositories import Repository
from tests.servers.ssh_server import SshServer, make_key, ssh_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("ssh")) as running:
        yield running


class Harbour:
    """A repository behind an SSH server, and an operator's files."""

    def __init__(self, folder: Path, server: SshServer, kind: str = "ed25519") -> None:
        self.folder, self.server = folder, server
        self.repository = Repository(folder / "river" / "otter")
        self.sha = self.repository.commit({"hello.txt": "ahoy\n"})
        self.public_line = make_key(folder / "deploy-key", kind)
        server.let_in(self.public_line)
        (folder / "hosts").write_text(server.known_hosts)
        (folder / "credentials.toml").write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{server.port}/**"]\n'
            'ssh_key = "file:deploy-key"\nknown_hosts = "hosts"\n'
        )

    async def check_out(self, **variables: str) -> str:
        url = f"ssh://{self.server.place}{self.repository.path}"
        policy = GitPolicy(
            protocols=("ssh",),
            timeout_seconds=30,
            environment={"PATH": os.environ["PATH"], **variables},
            credentials=GitCredentials(str(self.folder / "credentials.toml"), {}),
        )
        request = job_request(repo_url=url, commit_sha=self.sha, ref="refs/heads/main", trusted=True)
        source = self.folder / "source"
        await check_out(request, source, policy=policy, scratch=self.folder / "scratch")
        return (source / "hello.txt").read_text()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
async def test_a_deploy_key_fetches_its_repository(kind: str, server: SshServer, tmp_path: Path) -> None:
    assert await Harbour(tmp_path, server, kind).check_out() == "ahoy\n"


async def test_no_process_of_git_or_ssh_holds_the_key(
    server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, bytes]] = []
    answer = SshSigner.answer

    def answer_after_reading(signer: SshSigner, message: bytes) -> bytes:
        read.extend(git_memory(tmp_path))
        return answer(signer, message)

    monkeypatch.setattr(SshSigner, "answer", answer_after_reading)
    harbour = Harbour(tmp_path, server)
    key = deploy_key((tmp_path / "deploy-key").read_text())
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    assert await harbour.check_out() == "ahoy\n"
    forms = (key.private_bytes_raw(), *(tmp_path / "deploy-key").read_bytes().splitlines()[1:4])
    public = key.public_key().public_bytes_raw()
    # What looks like a key can be found in the memory of ssh: the public one is there.
    assert any("memory" in where and public in content for where, content in read)
    assert [where for where, content in read if any(form in content for form in forms)] == []


async def test_a_host_with_another_key_gets_no_signature(server: SshServer, tmp_path: Path) -> None:
    harbour = Harbour(tmp_path, server)
    other = make_key(tmp_path / "other").split()
    (tmp_path / "hosts").write_text(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
    before = server.log.count("Accepted")
    with pytest.raises(CheckoutFailed, match="Host key verification failed"):
        await harbour.check_out()
    assert server.log.count("Accepted") == before


async def test_no_other_key_and_no_agent_of_the_service_user_is_tried(
    server: SshServer, tmp_path: Path
) -> None:
    harbour = Harbour(tmp_path, server)
    own = make_key(tmp_path / "own")
    signer = SshSigner(key=deploy_key((tmp_path / "own").read_text()), user="root")
    server.let_in(own)
    async with open_agent(SshCredential(signer=signer, known_hosts=""), "ssh") as agent:
        socket = agent.environment["GIT_SSH_COMMAND"].rpartition("IdentityAgent=")[2]
        with pytest.raises(CheckoutFailed) as caught:
            await harbour.check_out(SSH_AUTH_SOCK=socket)
    assert caught.value.reason is Reason.COMMIT_NOT_FOUND
    assert "Permission denied" in caught.value.detail


async def test_the_agent_answers_no_process_outside_of_gits_session(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    signer = SshSigner(key=deploy_key((tmp_path / "key").read_text()), user="git")
    async with open_agent(SshCredential(signer=signer, known_hosts=""), "ssh") as agent:
        socket = agent.environment["GIT_SSH_COMMAND"].rpartition("IdentityAgent=")[2]
        for session, answers in ((None, False), (1, False), (os.getsid(0), True)):
            agent.session = session
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(b"\0\0\0\1\x0b")
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read(5)
            assert bool(answer) == answers
            writer.close()
    assert not Path(socket).parent.exists()
