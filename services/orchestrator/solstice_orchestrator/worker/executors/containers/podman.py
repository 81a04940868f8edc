"""Run podman, and tell from its messages who caused a failure."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_orchestrator.processes.children import child

COMMAND: Final = ("podman", "--cgroup-manager=cgroupfs")
"""Systemd's groups would need a slice for each attempt."""
SECONDS: Final = 120.0
_PASSED_ON: Final = re.compile(
    r"PATH|HOME|LANG|TMPDIR|XDG_RUNTIME_DIR|CONTAINERS_.*|REGISTRY_AUTH_FILE|(?:https?|no|HTTPS?|NO)_(?:proxy|PROXY)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanResult:
    """How a call of podman ended."""

    code: int
    """-1 when it took too long."""
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """Return podman's last words about its failure."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return (lines[-1] if lines else f"podman ended with exit code {self.code}")[:500]


@dataclass(frozen=True, slots=True, kw_only=True)
class Podman:
    """The command `podman` of this machine."""

    environment: Mapping[str, str]

    async def run(
        self, *arguments: str, seconds: float = SECONDS, logins: bytes | None = None
    ) -> PodmanResult:
        """Run podman, and return how that ended. Raises OSError when it cannot be started.

        It reads `logins` as its file of logins, which has no name and is in no directory.
        """
        with ExitStack() as opened:
            if logins is None:
                return await self._run(arguments, seconds)
            file = os.memfd_create("logins")
            opened.callback(os.close, file)
            os.pwrite(file, logins, 0)
            return await self._run((*arguments, "--authfile", f"/proc/self/fd/{file}"), seconds, file)

    async def _run(self, arguments: Sequence[str], seconds: float, *files: int) -> PodmanResult:
        command = (*COMMAND, *arguments)
        async with child(command, Path("/"), self.environment, b"", pass_fds=files) as running:
            reading = asyncio.gather(running.stdout.read(), running.stderr.read())
            try:
                async with asyncio.timeout(seconds):
                    output, errors = await reading
                    code = await running.wait()
            except TimeoutError:
                return PodmanResult(
                    code=-1, output="", errors=f"podman {arguments[0]} took longer than {seconds:g} s"
                )
        return PodmanResult(
            code=code, output=output.decode(errors="replace"), errors=errors.decode(errors="replace")
        )


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the orchestrator that podman needs."""
    return {name: value for name, value in environ.items() if _PASSED_ON.fullmatch(name)}
