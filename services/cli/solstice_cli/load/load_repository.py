"""Makes the git repository of a load: one branch for each kind of job."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solstice_cli.load.load_plan import JobKind
from solstice_common.cli.local_repository import git_environment
from solstice_common.errors import ConfigurationError

WORKFLOW_PATH: Final = ".solstice/workflow.kdl"
BRANCH_PREFIX: Final = "refs/heads/load/"
GIT_SECONDS: Final = 60
_STEPS: Final[Mapping[JobKind, str]] = {
    JobKind.NOOP: 'job "noop"{image} {{\n    step "nothing" run="true"\n}}\n',
    JobKind.SLEEPING: 'job "sleeping"{image} {{\n    step "hold a slot" run="sleep 1"\n}}\n',
    JobKind.FAILING: 'job "failing"{image} {{\n    step "fail" run="exit 1"\n}}\n',
    JobKind.FLAKY: (
        'job "flaky"{image} retries=2 {{\n'
        '    step "fail the first time" run="test $SOLSTICE_ATTEMPT -gt 1"\n}}\n'
    ),
}


def make_load_repository(folder: Path, *, image: str | None) -> None:
    """Make a bare repository in a folder that does not exist yet.

    `image` is the container image of every job. Raises ConfigurationError.
    """
    if image is not None and not all(each.isprintable() and each not in '"\\' for each in image):
        raise ConfigurationError(f"--image {image!r} is no name of an image")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists already: name a folder that does not")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error.strerror}") from None
    _git(folder.parent, "init", "--quiet", "--bare", "--initial-branch=load/noop", str(folder.absolute()))
    _git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    _git(folder, "fast-import", "--quiet", stdin="".join(_import_commands(image)))


def commits_of(repo_url: str) -> dict[JobKind, str]:
    """Return the newest commit of each kind's branch.

    ConfigurationError says what the repository lacks.
    """
    lines = _git(Path(), "ls-remote", "--", repo_url, f"{BRANCH_PREFIX}*").splitlines()
    commits = {ref: sha for sha, _, ref in (line.partition("\t") for line in lines)}
    missing = [kind.value for kind in JobKind if BRANCH_PREFIX + kind not in commits]
    if missing:
        raise ConfigurationError(
            f"the repository lacks the branches {', '.join(f'load/{kind}' for kind in missing)}: make one with "
            "'solstice load --write-repository FOLDER', and push all its branches there"
        )
    return {kind: commits[BRANCH_PREFIX + kind] for kind in JobKind}


def _import_commands(image: str | None) -> list[str]:
    """The input of git fast-import (git-scm.com/docs/git-fast-import).

    Fixed times make equal commits anywhere.
    """
    commands = []
    for kind in JobKind:
        workflow = _STEPS[kind].format(image="" if image is None else f' image="{image}"')
        commands.append(
            f"commit {BRANCH_PREFIX}{kind}\n"
            "committer Solstice CI <load@localhost> 1767225600 +0000\n"
            f"{_data(f'A load: {kind}')}M 100644 inline {WORKFLOW_PATH}\n{_data(workflow)}\n"
        )
    return [*commands, "done\n"]


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


def _git(folder: Path, *arguments: str, stdin: str = "") -> str:
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**git_environment(), "GIT_TERMINAL_PROMPT": "0"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_SECONDS,
        )
    except FileNotFoundError:
        raise ConfigurationError("git is not on the PATH: install it") from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"git {arguments[0]} took longer than {GIT_SECONDS} s") from None
    if ended.returncode:
        # The arguments may hold a password; git's own words hide it.
        raise ConfigurationError(f"git {arguments[0]}: {ended.stderr.strip() or 'it failed'}")
    return ended.stdout
