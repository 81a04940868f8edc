"""A shell runs the commands about signing keys that the documentation prints, in their order."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.docs_pages import blocks
from tests.servers.service_process import base_environment


def test_the_printed_commands_make_replace_and_revoke_keys(tmp_path: Path) -> None:
    lines = "".join(block for block in blocks("docs/operations/security.md", "sh") if "key" in block)
    subprocess.run(
        ["sh", "-e", "-c", lines],
        env={
            **base_environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOLSTICE_HOME": str(tmp_path / "home"),
        },
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=100,
    )
    public = json.loads((tmp_path / "verify-keys.json").read_text("utf-8"))["keys"]
    assert [key["kid"] for key in public] == ["nightly", "forge-2027"], "those that orchestrators know"
    assert json.loads((tmp_path / "signing-key.json").read_text("utf-8"))["kid"] == "forge-2027"
    assert not (tmp_path / "home" / "verify-keys.json").exists()
