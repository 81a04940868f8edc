"""A base class for values that are made for every webhook.

A frozen dataclass takes ten times as long to make.
"""

from msgspec import Struct


class Value(Struct, frozen=True, kw_only=True, gc=False):
    """Like a frozen, keyword-only dataclass; `msgspec.structs.replace` makes a changed copy.

    The collector of cycles does not look at it, so it holds nothing that could lead back to it.
    """
