"""A private SSH server that lets one key run git."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from tests.servers.apt import apt_can_install, apt_install
from tests.servers.guarded_process import GuardedProcess
from tests.servers.ports import free_ports

NOTHING_FOUND = """\
These tests need OpenSSH's server. Install the package openssh-server (it needs no running service), or run the tests as
root on Debian or Ubuntu, and they install it themselves."""


@dataclass(frozen=True, kw_only=True)
class SshServer:
    """A running server."""

    port: int
    folder: Path

    @property
    def place(self) -> str:
        return f"{getuser()}@127.0.0.1:{self.port}"

    @property
    def known_hosts(self) -> str:
        key = (self.folder / "host.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n"

    def let_in(self, public_line: str, before: str = "") -> None:
        """Let this key alone in; its commands run after the shell command `before`."""
        command = f'{before or ":"}; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"'
        (self.folder / "authorized").write_text(f'command="{command}" {public_line}\n')

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


def make_key(path: Path, kind: str = "ed25519") -> str:
    """Make a key without a passphrase; return its public line."""
    command = ["ssh-keygen", "-q", "-N", "", "-C", "test", "-t", kind, "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path.with_name(f"{path.name}.pub").read_text().strip()


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    program = sshd()
    (port,) = free_ports(1)
    make_key(folder / "host")
    (folder / "authorized").touch()
    options = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PidFile": "none",
        "LogLevel": "VERBOSE",
    }
    (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    command = [program, "-D", "-f", str(folder / "config"), "-E", str(folder / "log")]
    process = GuardedProcess("sshd", folder)
    process.start(command, environment={"PATH": os.environ["PATH"]}, answers=lambda: _answers(port))
    try:
        yield SshServer(port=port, folder=folder)
    finally:
        process.end(b"kill\n")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        return client.recv(4) == b"SSH-"
    return False


def sshd() -> str:
    """The whole path of the server, which is installed if it must be."""
    path = "/usr/sbin:/usr/local/sbin:/sbin:" + os.environ["PATH"]
    found = shutil.which("sshd", path=path)
    if found is None and apt_can_install():
        apt_install("openssh-server")
        found = shutil.which("sshd", path=path)
    if found is None:
        raise RuntimeError(NOTHING_FOUND)
    return found
