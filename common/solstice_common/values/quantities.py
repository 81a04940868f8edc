"""Words for a number of things: `1 job`, `2 jobs`. Pure."""


def quantity(count: int, noun: str, plural: str = "") -> str:
    """Return the number and the noun; `plural`: if it takes more than an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
