"""A git that records the environment that it is given."""

import os
from pathlib import Path


def recorded_git(folder: Path) -> str:
    """A PATH whose git writes its environment, and its children's, to `of-git` in the folder."""
    (folder / "bin").mkdir()
    shim = folder / "bin" / "git"
    shim.write_text(f'#!/bin/sh\nenv >> {folder}/of-git\nPATH="{os.environ["PATH"]}" exec git "$@"\n')
    shim.chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"
