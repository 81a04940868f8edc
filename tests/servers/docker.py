"""Says whether there is a Docker to run servers in."""

import shutil
import subprocess
from contextlib import suppress


def docker_answers() -> bool:
    """Whether there is a Docker daemon we may use."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    return False
