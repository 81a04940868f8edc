"""Every command on the API page works as described, on real services."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from solstice_common.http.token_file import read
from solstice_common.http.tokens import TokenScope
from tests.docs_pages import blocks
from tests.servers.apt import apt_install
from tests.servers.forge_integration import forge_integration
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.service_process import base_environment

PAGE = "docs/api.md"


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        apt_install("curl")
    shared_files = SharedFiles(directory=tmp_path)
    with forge_integration(shared_files) as forge, orchestrator(shared_files) as runs:
        script = "\necho\n".join(blocks(PAGE, "sh"))
        for written, real in {"http://127.0.0.1:8080": forge.url, "http://127.0.0.1:8081": runs.url}.items():
            assert written in script
            script = script.replace(written, real)
        environment = {
            **base_environment(),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SOLSTICE_TOKENS": str(tmp_path / "tokens.json"),
            "SOLSTICE_URL": runs.url,
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {token.name: token.scopes for token in read(tmp_path / "tokens.json")} == {
        "release": frozenset({TokenScope.ENQUEUE, TokenScope.READ}),
        "gardener": frozenset({TokenScope.OPERATE}),
    }
    for reported in (
        '"request_id"',
        '"repository":"tide-club/almanac"',
        '"number":1',
        '"runs"',
        '"wanted_slots"',
        '"next_at"',
        '"openapi": "3.1.0"',
    ):
        assert reported in done.stdout
