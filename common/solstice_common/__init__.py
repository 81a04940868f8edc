"""What both services share: messages, topology, broker, storage and HTTP."""

from importlib.metadata import version

__version__ = version("solstice-ci")
