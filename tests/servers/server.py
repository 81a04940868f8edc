"""The operations of every server of the tests."""

import ssl
from abc import ABC, abstractmethod
from typing import Final, Self

TLS: Final = ssl.create_default_context()
"""For clients of servers: each makes one of its own otherwise, which takes 25 ms of processor time."""


class Server(ABC):
    """A server, not yet started: enter it with `with`.

    An operation that is impossible (stop a server that is not ours) raises.
    """

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> None:
        """Start it (again) on the same ports with the same data. Returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it as an operator does: everything is written."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL the server: only durable data remain."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove everything it wrote, if it is ours."""

    def freeze(self) -> None:
        """SIGSTOP it: its sockets stay, nothing answers."""
        raise RuntimeError("this server cannot be frozen")

    def thaw(self) -> None:
        """Let a frozen server go on."""
        raise RuntimeError("this server cannot be frozen")

    def restart(self) -> None:
        self.stop()
        self.start()
