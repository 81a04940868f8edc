"""Large bodies are read one after the other; connections that the application paused stay paused."""

import asyncio

from solstice_common.http.server.read_queue import AT_ONCE, QueuedReader, ReadQueue


class Transport:
    """Remembers whether it is read."""

    def __init__(self) -> None:
        self.is_read = True
        self.is_closed = False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_closed


def connections(count: int) -> tuple[list[Transport], list[QueuedReader]]:
    queue = ReadQueue()
    transports = [Transport() for _ in range(count)]
    return transports, [QueuedReader(transport, queue) for transport in transports]  # type: ignore[arg-type]  # all it needs


async def test_a_few_connections_are_read_in_each_iteration_of_the_loop_in_their_order() -> None:
    transports, waiting = connections(3 * AT_ONCE)
    for reading in waiting:
        reading.wait_in_queue()
    assert not any(transport.is_read for transport in transports)
    for rounds in (1, 2, 3):
        await asyncio.sleep(0)
        assert [transport.is_read for transport in transports] == [
            index < rounds * AT_ONCE for index in range(3 * AT_ONCE)
        ]


async def test_what_the_application_paused_is_read_when_it_takes_more_and_its_turn_has_come() -> None:
    (transport,), (reading,) = connections(1)
    reading.wait_in_queue()
    reading.pause_reading()
    await asyncio.sleep(0)
    assert not transport.is_read
    reading.resume_reading()
    assert transport.is_read


async def test_an_application_that_takes_more_does_not_go_before_its_turn() -> None:
    (transport,), (reading,) = connections(1)
    reading.pause_reading()
    reading.wait_in_queue()
    reading.resume_reading()
    assert not transport.is_read
    await asyncio.sleep(0)
    assert transport.is_read


async def test_a_connection_that_closed_meanwhile_is_not_read() -> None:
    (transport,), (reading,) = connections(1)
    reading.wait_in_queue()
    transport.is_closed = True
    await asyncio.sleep(0)
    assert not transport.is_read
