"""Chooses between the inside of a library and its public interface.

Where the public interface costs speed or bounds, we use the inside, in one module for each library. When a
new version changes it, `SOLSTICE_PUBLIC_INTERFACES` names the libraries that are used only by their public
interface, or `all`.
"""

import os
from functools import cache
from typing import Final, Literal

from solstice_common.errors import ConfigurationError

Library = Literal["asyncpg", "nats", "uvicorn"]
LIBRARIES: Final[tuple[Library, ...]] = ("asyncpg", "nats", "uvicorn")
VARIABLE: Final = "SOLSTICE_PUBLIC_INTERFACES"


def public_only(library: Library) -> bool:
    """Whether the library is used by its public interface alone. ConfigurationError for an unknown name."""
    return library in _chosen()


@cache
def _chosen() -> frozenset[str]:
    named = frozenset(os.environ.get(VARIABLE, "").replace(",", " ").split())
    unknown = named.difference(LIBRARIES, {"all"})
    if unknown:
        raise ConfigurationError(
            f"{VARIABLE}: {', '.join(sorted(unknown))} is not known here: use {', '.join(LIBRARIES)} or all"
        )
    return frozenset(LIBRARIES) if "all" in named else named
