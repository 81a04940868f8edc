"""A base class for values that are made for every webhook.

A frozen dataclass takes ten times as long to make.
"""

from msgspec import Struct


class Value(Struct, frozen=True, kw_only=True, gc=False):
    """Like a frozen, keyword-only dataclass; `msgspec.structs.replace` makes a changed copy.

    The garbage collector does not track it, so it must not hold anything that refers back to it.
    """
