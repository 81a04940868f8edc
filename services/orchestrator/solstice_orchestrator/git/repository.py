"""An empty repository that knows where to fetch from: what `git init` and `git config` do, without their processes."""

from pathlib import Path
from typing import Final

SHA256_LENGTH: Final = 64
_CORE: Final = {
    True: "\tbare = true\n",
    False: "\tbare = false\n\tfilemode = true\n\tlogallrefupdates = true\n",
}


def write_repository(git_dir: Path, *, url: str, object_format: str, bare: bool) -> None:
    """Make the directory a repository without objects, whose remote `origin` is `url`."""
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
    """The kind of ids of the repository that has this full commit id."""
    return "sha256" if len(sha) == SHA256_LENGTH else "sha1"


def quoted(value: str) -> str:
    """The text as a value in a git configuration file (git-config(1), "Syntax").

    Raises ValueError for NUL and carriage return, which cannot stand there.
    """
    if "\0" in value or "\r" in value:
        raise ValueError("a value of a git configuration holds neither NUL nor carriage return")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
