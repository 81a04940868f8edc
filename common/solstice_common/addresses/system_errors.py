"""Says in the system's own words why it refused. Pure.

asyncio, aiormq, redis-py and nats-py each wrap them in another way, and none says that a connection was refused.
"""

import os
import re
from typing import Final

_SEVERAL: Final = "Multiple exceptions: "
"""How asyncio begins when a name has several addresses, and each failed."""
_NUMBERED: Final = re.compile(
    r"(?:\[Errno (-?\d+)\]|\bError (-?\d+) connecting to \S+\.|^(-?\d+)(?= Connect call failed|(?<=-\d) ))"
    r" (Connect call failed \([^()]*\))?"
)


def system_words(text: str) -> str:
    """An error's text without numbers of errors and words of asyncio."""
    words = _NUMBERED.sub(_named, text.removeprefix(_SEVERAL))
    return ", ".join(dict.fromkeys(words.split(", "))) if text.startswith(_SEVERAL) else words


def _named(found: "re.Match[str]") -> str:
    """The system's words for the number, where asyncio has replaced them."""
    *numbers, replaced = found.groups()
    return os.strerror(next(int(number) for number in numbers if number)) if replaced else ""
