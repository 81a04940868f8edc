"""Topics of changes in a store."""

from enum import Flag, auto


class StoreTopic(Flag):
    """What a change may be for: loops wait for those that may give them work."""

    NONE = 0
    PLANNING = auto()
    """A run may wait to be planned."""
    CLAIMS = auto()
    """A job may wait to be claimed."""
    OUTBOX = auto()
    """A message may wait to be published."""
    VIEWS = auto()
    """Readers may see something new."""
    ALL = PLANNING | CLAIMS | OUTBOX | VIEWS
