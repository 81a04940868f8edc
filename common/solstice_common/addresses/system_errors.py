"""Says in the system's own words why it refused. Pure.

asyncio, aiormq, redis-py and nats-py each wrap them in another way, and none says that a connection was refused.
"""

import os
import re
from typing import Final

from solstice_common.errors import first_of

_SEVERAL: Final = "Multiple exceptions: "
"""How asyncio begins when a name has several addresses, and each failed."""
_NUMBERED: Final = re.compile(
    r"(?:\[Errno (-?\d+)\]|\bError (-?\d+) connecting to \S+\.|^(-?\d+)(?= Connect call failed|(?<=-\d) ))"
    r" (Connect call failed \([^()]*\))?"
)


def system_words(text: str) -> str:
    """Return an error's text without numbers of errors and words of asyncio."""
    words = _NUMBERED.sub(_named, text.removeprefix(_SEVERAL))
    return ", ".join(dict.fromkeys(words.split(", "))) if text.startswith(_SEVERAL) else words


def cause_in_words(error: Exception) -> str:
    """Return what the system said, where a library has put other words around it."""
    system_error: BaseException = error
    inner: BaseException | None = first_of(error)
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno is not None:
            system_error = inner
        cause = inner.__cause__ or inner.__context__
        inner = None if cause is None else first_of(cause)
    return system_words(str(system_error)) or type(error).__name__


def _named(found: "re.Match[str]") -> str:
    """Return the system's words for the number, where asyncio has replaced them."""
    *numbers, replaced = found.groups()
    return os.strerror(next(int(number) for number in numbers if number)) if replaced else ""
