"""RabbitMQ from its official image, where a Docker daemon answers."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import httpx2

from tests.servers.ports import free_ports
from tests.servers.rabbitmq_server import RabbitMQServer

if TYPE_CHECKING:
    from docker.models.containers import Container  # type: ignore[import-untyped]  # it ships no types

IMAGE: Final = "rabbitmq:4-management"
START_SECONDS: Final = 120.0


class RabbitMQContainer(RabbitMQServer):
    """A container of our own.

    The reaper of testcontainers ends it when the test run dies.
    """

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415  slow, and only needed here

        # Fixed ports, so that they stay the same when the container is stopped and started.
        amqp, management = free_ports(2)
        self._container = (
            DockerContainer(IMAGE).with_bind_ports(5672, amqp).with_bind_ports(15672, management)
        )
        # The default user is only welcome from localhost, which we are not from inside the container.
        self._container.with_env("RABBITMQ_DEFAULT_USER", "tester").with_env(
            "RABBITMQ_DEFAULT_PASS", "tester"
        )
        self._running: Container | None = None
        super().__init__(
            version="4",
            amqp_url=f"amqp://tester:tester@127.0.0.1:{amqp}/%2f",
            management_url=f"http://tester:tester@127.0.0.1:{management}",
        )

    def start(self) -> None:
        if self._running is None:
            self._container.start()
            self._running = self._container.get_wrapped_container()
        else:
            self._running.start()
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(httpx2.HTTPError, OSError):
                overview = self.api("GET", "overview")
                if self.amqp_answers():
                    self.version = str(overview["rabbitmq_version"])
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{IMAGE} did not start:\n{self._running.logs(tail=100).decode()}")
            time.sleep(0.2)

    def stop(self) -> None:
        self._wrapped.stop(timeout=30)

    def kill(self) -> None:
        self._wrapped.kill()

    def ctl(self, *arguments: str) -> str:
        code, output = self._wrapped.exec_run(["rabbitmqctl", *arguments])
        if code:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)} failed:\n{output.decode()}")
        return str(output.decode())

    def close(self) -> None:
        self._container.stop()

    @property
    def _wrapped(self) -> "Container":
        if self._running is None:
            raise RuntimeError("the container was not started")
        return self._running
