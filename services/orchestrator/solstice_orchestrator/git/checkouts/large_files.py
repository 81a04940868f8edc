"""Fetch the content of files in Git LFS, by git-lfs where the worker has it."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.addresses import AddressPin
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.git.credentials.lfs_gateway import LfsFetch, open_lfs_gateway
from solstice_orchestrator.git.credentials.lfs_messages import LfsObject
from solstice_orchestrator.git.failures import reason_of_local
from solstice_orchestrator.git.fetching import git_message

_FILTER: Final[Mapping[str, str]] = {
    "filter.lfs.clean": "git-lfs clean -- %f",
    "filter.lfs.smudge": "git-lfs smudge -- %f",
    "filter.lfs.process": "git-lfs filter-process",
    "filter.lfs.required": "true",
}
"""As `git lfs install` writes them."""
_SETTINGS: Final[Mapping[str, str]] = {
    **_FILTER,
    "lfs.basictransfersonly": "true",
    "lfs.skipdownloaderrors": "false",
    "lfs.locksverify": "false",
    "lfs.transfer.maxretries": "1",
    "lfs.transfer.maxverifies": "1",
}
_NO_SPACE: Final = "no space left on device"
"""The words of git-lfs (Go) for ENOSPC."""

LIST_BYTES: Final = 16 * 1024**2
_PART: Final = re.compile(r"^([0-9a-f]{64}) - ", re.MULTILINE)
"""The line of a file whose size is not that of its content (git-lfs-ls-files(1))."""


def check_lfs(policy: GitPolicy) -> None:
    """Raise CheckoutFailed where git-lfs is not installed."""
    if shutil.which("git-lfs", path=policy.environment.get("PATH", os.defpath)) is None:
        raise CheckoutFailed(
            Reason.COMMIT_UNUSABLE,
            "the job asks for files of Git LFS (lfs), and this worker has no git-lfs: install the package git-lfs there",
        )


async def fetch_large_files(git: Git, fetch: LfsFetch) -> None:
    """Replace the pointers in a checkout by the files; raises CheckoutFailed.

    `git` is one without a credential.
    """
    listed = await git.run("lfs", "ls-files", "--name-only", "HEAD", max_output=1)
    if listed.returncode != 0:
        reason = reason_of_local(listed.errors, listed.returncode)
        raise CheckoutFailed(reason, f"the files in Git LFS cannot be listed: {git_message(listed)}")
    if not listed.stdout:
        return
    scheme = fetch.upstream.parts.scheme
    if scheme not in {"https", "http"}:
        raise CheckoutFailed(
            Reason.COMMIT_UNUSABLE,
            f"files in Git LFS are fetched by https alone, and this repository is fetched by {scheme}",
        )
    async with open_lfs_gateway(fetch) as gateway:
        options = {**_SETTINGS, "lfs.url": gateway.base}
        variables = {"GIT_CONFIG_COUNT": str(len(options)), "GIT_LFS_SKIP_SMUDGE": "0"}
        for number, (name, value) in enumerate(options.items()):
            variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        git.use(AddressPin(environment=variables))
        pulled = await git.run("lfs", "pull", "origin", writes=True)
        has_parts = pulled.returncode == 0 and await _has_parts(git, gateway.objects)
        if pulled.returncode != 0 or gateway.trouble or has_parts:
            detail = gateway.trouble or git_message(pulled).replace(gateway.base, fetch.upstream.origin)
            reason = gateway.reason
            if not gateway.trouble and (has_parts or _NO_SPACE in detail):
                # The words alone may be those of a file's name.
                largest_bytes = max((each.size_bytes for each in gateway.objects.values()), default=0)
                if shutil.disk_usage(git.git_dir).free < largest_bytes:
                    reason, detail = Reason.MACHINE_FAILED, f"{_NO_SPACE} ({detail})"
            raise CheckoutFailed(reason, f"files in Git LFS are not fetched: {detail}")
    _write_filter(git.git_dir)


async def _has_parts(git: Git, objects: Mapping[str, LfsObject]) -> bool:
    """Return whether a fetched object is not the whole content of its file.

    git-lfs goes on after a file that it could not write, and ends as if it had written all.
    """
    listed = await git.run("lfs", "ls-files", "--long", "HEAD", max_output=LIST_BYTES)
    parts = _PART.findall(listed.stdout.decode("ascii", "replace"))
    return listed.returncode != 0 or any(oid in objects for oid in parts)


def _write_filter(git_dir: Path) -> None:
    """Let git in the job see the files as unchanged."""
    lines = [f"\t{name.rpartition('.')[2]} = {value}\n" for name, value in _FILTER.items()]
    with (git_dir / "config").open("a", encoding="utf-8") as config:
        config.write('[filter "lfs"]\n' + "".join(lines))
