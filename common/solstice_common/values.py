"""Values on the path that every webhook takes: a frozen dataclass takes ten times as long to make."""

from msgspec import Struct


class Value(Struct, frozen=True, kw_only=True, gc=False):
    """Like a frozen, keyword-only dataclass; `msgspec.structs.replace` makes another of it.

    The collector of cycles does not look at it, so it holds nothing that could lead back to it.
    """
