"""Read the node `checkout` of a job or of `defaults`. Pure."""

from dataclasses import dataclass
from typing import Final, TypeVar

from solstice_orchestrator.domain.checkout_spec import (
    MAX_DEPTH,
    PLAIN_CHECKOUT,
    ChangeCommit,
    CheckoutSpec,
    Submodules,
)
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue
from solstice_orchestrator.workflow.shape import expect_childless, one_of, properties, truth, whole_number

T = TypeVar("T")

NONE: Final = "none"
_SUBMODULES_RULE: Final = 'submodules is #true, #false or "recursive"'


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutProperties:
    """The node as written; None where a property is not given."""

    is_none: bool = False
    """Whether the workspace stays empty."""
    depth: int | None = None
    tags: bool | None = None
    submodules: Submodules | None = None
    lfs: bool | None = None
    ref: ChangeCommit | None = None

    def spec(self, defaults: "CheckoutProperties") -> CheckoutSpec | None:
        """Return the job's checkout; `defaults` gives what this node does not."""
        if self.is_none:
            return None
        plain = PLAIN_CHECKOUT
        return CheckoutSpec(
            depth=_first(self.depth, defaults.depth, plain.depth),
            tags=_first(self.tags, defaults.tags, plain.tags),
            submodules=_first(self.submodules, defaults.submodules, plain.submodules),
            lfs=_first(self.lfs, defaults.lfs, plain.lfs),
            ref=_first(self.ref, defaults.ref, plain.ref),
        )


NO_PROPERTIES: Final = CheckoutProperties()


def read_checkout(node: KdlNode) -> CheckoutProperties:
    """Read a `checkout` node."""
    expect_childless(node)
    values = properties(node, ("depth", "tags", "submodules", "lfs", "ref"))
    if node.arguments:
        one_of(node.arguments[0], "what checkout takes besides properties", (NONE,))
        for surplus in (*node.arguments[1:], *values.values()):
            raise surplus.position.problem(
                "'checkout none' leaves the workspace empty, and takes nothing else"
            )
        return CheckoutProperties(is_none=True)
    ref = values.get("ref")
    return CheckoutProperties(
        depth=whole_number(values["depth"], "depth", MAX_DEPTH) if "depth" in values else None,
        tags=truth(values["tags"], "tags is #true or #false") if "tags" in values else None,
        submodules=_submodules(values["submodules"]) if "submodules" in values else None,
        lfs=truth(values["lfs"], "lfs is #true or #false") if "lfs" in values else None,
        ref=ChangeCommit(one_of(ref, "ref", tuple(ChangeCommit))) if ref else None,
    )


def _submodules(value: KdlValue) -> Submodules:
    if value.value == Submodules.RECURSIVE:
        return Submodules.RECURSIVE
    return Submodules.DIRECT if truth(value, _SUBMODULES_RULE) else Submodules.NONE


def _first(own: T | None, rest: T | None, otherwise: T) -> T:
    given = own if own is not None else rest
    return otherwise if given is None else given
