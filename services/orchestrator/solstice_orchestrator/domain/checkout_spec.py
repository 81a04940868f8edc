"""What a job finds of the repository in its workspace. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_DEPTH: Final = 1_000_000


class Submodules(StrEnum):
    """Which submodules are checked out as well."""

    NONE = "none"
    DIRECT = "direct"
    """Those of the commit itself."""
    RECURSIVE = "recursive"
    """Those of submodules, too."""


class ChangeCommit(StrEnum):
    """Which commit of a change request is checked out."""

    HEAD = "head"
    MERGE = "merge"
    """The forge's merge of the head into the target branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutSpec:
    """How the commit is checked out."""

    depth: int = 1
    """The number of commits, from the newest on; 0: all."""
    tags: bool = False
    """Whether the tags of these commits come with them."""
    submodules: Submodules = Submodules.NONE
    lfs: bool = False
    """Whether files in Git LFS have their content."""
    ref: ChangeCommit = ChangeCommit.HEAD

    @property
    def may_change(self) -> bool:
        """Whether a later checkout of the same commit may find something else."""
        return self.tags or self.ref is ChangeCommit.MERGE

    @property
    def of_commit(self) -> "CheckoutSpec":
        """What of this concerns the objects of the commit itself."""
        return CheckoutSpec(depth=self.depth, tags=self.tags)


PLAIN_CHECKOUT: Final = CheckoutSpec()
