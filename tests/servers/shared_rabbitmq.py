"""Shares one RabbitMQ of each flavour among all processes of a test run.

A start takes five to eight seconds of a processor. The process that hands out the tests owns the nodes; each of those
that run tests asks it for the place of one, which is started on first use.
"""

import tempfile
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Final

from tests.servers.rabbitmq import shared_rabbitmq
from tests.servers.rabbitmq_node import JoinedRabbitMQ, NodePlace, PlacedRabbitMQ
from tests.servers.rabbitmq_server import RabbitMQServer

ADDRESS: Final = "shared_rabbitmq"
"""The key under which a process finds the socket of the owner in its `workerinput`."""


class SharedRabbitMQ:
    """Answers each process that asks for a flavour with the place of its node."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="solstice-shared-")
        self.address = str(Path(self._folder.name) / "socket")
        self._stack = ExitStack()
        self._listener = Listener(self.address)
        self._places: dict[str, NodePlace | None] = {}
        self._answering = threading.Thread(target=self._answer, name="shared rabbitmq", daemon=True)
        self._answering.start()

    def close(self) -> None:
        """End the nodes."""
        # An empty word ends the thread, which may just be starting a node.
        with suppress(OSError), Client(self.address) as owner:
            owner.send("")
        self._answering.join()
        self._listener.close()
        self._stack.close()
        self._folder.cleanup()

    def _answer(self) -> None:
        while True:
            with self._listener.accept() as caller:
                flavour = caller.recv()
                if not flavour:
                    return
                self._answer_one(caller, flavour)

    def _answer_one(self, caller: Connection, flavour: str) -> None:
        # The caller may have been ended meanwhile.
        with suppress(OSError):
            try:
                caller.send(self._place(flavour))
            except RuntimeError as error:
                caller.send(str(error))

    def _place(self, flavour: str) -> NodePlace | None:
        if flavour not in self._places:
            server = self._stack.enter_context(shared_rabbitmq(flavour))
            self._places[flavour] = server.place if isinstance(server, PlacedRabbitMQ) else None
        return self._places[flavour]


def joined_rabbitmq(address: str, flavour: str) -> RabbitMQServer:
    """The node of a flavour that the owner at `address` has started.

    One of this process where the server is no node of ours. RuntimeError when it does not start.
    """
    with Client(address) as owner:
        owner.send(flavour)
        answer: NodePlace | str | None = owner.recv()
    match answer:
        case None:
            return shared_rabbitmq(flavour)
        case NodePlace():
            return JoinedRabbitMQ(answer)
        case why:
            raise RuntimeError(why)
