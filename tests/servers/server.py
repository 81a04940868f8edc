"""What every server of the tests can be asked to do."""

from abc import ABC, abstractmethod
from typing import Self


class Server(ABC):
    """Not yet started: enter it with `with`. What it cannot do (stop a server that is not ours) raises."""

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
        """Start it (again) on the same ports with the same data; returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it as an operator does: everything is written."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL: what was promised stays, nothing else."""

    @abstractmethod
    def close(self) -> None:
        """End it and remove everything it wrote, if it is ours."""

    def restart(self) -> None:
        self.stop()
        self.start()
