"""What two services must agree on: the messages, the topology, the broker and the durable ground under both."""

from importlib.metadata import version

__version__ = version("solstice-ci")
