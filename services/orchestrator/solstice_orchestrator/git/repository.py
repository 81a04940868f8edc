"""Write an empty repository with a remote, as `git init` and `git config` would."""

from pathlib import Path
from typing import Final

SHA256_LENGTH: Final = 64
_CORE: Final = {
    True: "\tbare = true\n",
    False: "\tbare = false\n\tfilemode = true\n\tlogallrefupdates = true\n",
}


def write_repository(git_dir: Path, *, url: str, object_format: str, bare: bool) -> None:
    """Make the directory an empty repository whose remote `origin` is `url`."""
    for below in ("objects", "refs"):
        (git_dir / below).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    sha256 = object_format == "sha256"
    (git_dir / "config").write_text(
        f"[core]\n\trepositoryformatversion = {int(sha256)}\n{_CORE[bare]}"
        + ("[extensions]\n\tobjectFormat = sha256\n" if sha256 else "")
        + f'[remote "origin"]\n\turl = {quoted(url)}\n',
        encoding="utf-8",
    )


def object_format(sha: str) -> str:
    """Return the format of object ids in the repository of this full commit id."""
    return "sha256" if len(sha) == SHA256_LENGTH else "sha1"


def quoted(value: str) -> str:
    """Quote a text as a value in a git configuration file (git-config(1), "Syntax").

    Raises ValueError for NUL and carriage return, which cannot be quoted.
    """
    if "\0" in value or "\r" in value:
        raise ValueError("a value of a git configuration holds neither NUL nor carriage return")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
