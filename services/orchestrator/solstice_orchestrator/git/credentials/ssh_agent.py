"""An SSH agent for a command of git, which signs in with a deploy key.

ssh never gets the key. It reads no configuration, keys or known hosts of the service user. It trusts only the host keys of the rule.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections
from solstice_orchestrator.git.credentials.ssh_signing import SshSigner

MESSAGE_BYTES: Final = 16 * 1024
MESSAGE_SECONDS: Final = 60.0
_PEER: Final = struct.Struct("3i")
"""The process, user and group of a peer (unix(7), SO_PEERCRED)."""
_OPTIONS: Final = (
    *("-F", "/dev/null"),
    *(
        f"-o{option}"
        for option in (
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
            "UpdateHostKeys=no",
            "CheckHostIP=no",
            "VerifyHostKeyDNS=no",
            "PreferredAuthentications=publickey",
            "IdentitiesOnly=yes",
            "AddKeysToAgent=no",
            "ControlMaster=no",
            "ControlPath=none",
            "ClearAllForwardings=yes",
            "ForwardAgent=no",
            "ForwardX11=no",
            "PermitLocalCommand=no",
            "ProxyJump=none",
        )
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshCredential:
    """A deploy key for one host."""

    signer: SshSigner
    known_hosts: str
    """The public keys of the host (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""


@dataclass(slots=True, kw_only=True)
class SshAgent:
    """An open agent; without a credential it is none."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables by which git finds it."""
    session: int | None = None
    """The session whose processes may ask; None: no process may yet."""


@asynccontextmanager
async def open_agent(credential: SshCredential | None, ssh_command: str) -> AsyncIterator[SshAgent]:
    """Open an agent for a command of git that uses this command for ssh.

    Without a credential, open nothing. Raises OSError when no socket is left.
    """
    agent = SshAgent()
    if credential is None:
        yield agent
        return
    # Names of sockets are short (unix(7)), so it is not below WORKSPACES.
    directory = Path(tempfile.mkdtemp(prefix="git-ssh-"))
    try:
        (directory / "known_hosts").write_text(credential.known_hosts, encoding="utf-8")
        (directory / "deploy.pub").write_text(f"{credential.signer.public_line}\n", encoding="ascii")
        serving = _Serving(credential.signer, agent)
        connections = LoopbackConnections(serving.serve, "ssh agent")
        server = await asyncio.start_unix_server(connections.accept, directory / "agent", limit=MESSAGE_BYTES)
        try:
            options = [
                *_OPTIONS,
                f"-oUserKnownHostsFile={directory / 'known_hosts'}",
                f"-oIdentityFile={directory / 'deploy.pub'}",
                f"-oIdentityAgent={directory / 'agent'}",
            ]
            agent.environment = {"GIT_SSH_COMMAND": f"{ssh_command} {shlex.join(options)}"}
            yield agent
        finally:
            server.close()
            await connections.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Serving:
    """The connections of one agent."""

    def __init__(self, signer: SshSigner, agent: SshAgent) -> None:
        self._signer, self._agent = signer, agent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            if not self._is_git(writer):
                return
            while True:
                async with asyncio.timeout(MESSAGE_SECONDS):
                    size = int.from_bytes(await reader.readexactly(4))
                    if size > MESSAGE_BYTES:
                        return
                    answer = self._signer.answer(await reader.readexactly(size))
                writer.write(len(answer).to_bytes(4) + answer)
                await writer.drain()

    def _is_git(self, writer: asyncio.StreamWriter) -> bool:
        """Return whether the peer is of git's session, into which no other process can get."""
        if not hasattr(socket, "SO_PEERCRED"):
            return True
        peer = writer.get_extra_info("socket")
        pid, _, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        try:
            return self._agent.session is not None and os.getsid(pid) == self._agent.session
        except ProcessLookupError:
            return False
