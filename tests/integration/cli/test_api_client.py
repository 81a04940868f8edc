"""The API client with a server that dies, comes back and cuts streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager

import pytest

from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.following import follow_job, follow_run
from solstice_common.errors import ServiceRefused, ServiceUnavailable
from tests.servers.ports import free_ports
from tests.servers.stream_server import stream_server

JOB = "0193cccc-0000-7000-8000-000000000003"
RUN = "0193aaaa-0000-7000-8000-000000000001"
Answer = Callable[[str, dict[str, str]], bytes]


@asynccontextmanager
async def served(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    """A server that answers each request with `answer(path, headers)`, and then disconnects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        writer.write(answer(head[0].split(" ")[1], headers))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with stream_server(serve, port=port) as served_port:
        yield served_port


def reply(body: str, *, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n{body}".encode()


def stream(*events: str) -> bytes:
    return reply("".join(f"{event}\n\n" for event in events), content_type="text/event-stream")


def chunk(number: int, text: str) -> str:
    return f'event: chunk\nid: 1.{number}\ndata: {{"sequence":{number},"at":"","text":"{text}"}}'


def ignore_text(_text: str) -> None:
    """Ignore the log text."""


END = 'event: end\ndata: {"state":"succeeded","reason":"completed","exit_code":0}'


def client(port: int, resume_seconds: float = 5.0) -> AbstractAsyncContextManager[OrchestratorClient]:
    return OrchestratorClient.open(f"http://127.0.0.1:{port}", resume_seconds=resume_seconds)


async def test_stream_that_was_cut_goes_on_where_it_was() -> None:
    positions = []

    def answer(_path: str, headers: dict[str, str]) -> bytes:
        positions.append(headers.get("last-event-id"))
        match headers.get("last-event-id"):
            case None:
                return stream(chunk(1, "one "), chunk(2, "two "))
            case "1.2":
                return stream(chunk(3, "three")) + b"event: chunk\nid: 1.4\ndata: {"
            case _:
                return stream(END)

    written: list[str] = []
    async with served(answer) as port, client(port) as api:
        end = await follow_job(api, JOB, written.append)
    assert "".join(written) == "  one two three\n"
    assert positions == [None, "1.2", "1.3"]
    assert end["state"] == "succeeded"


async def test_stream_survives_a_restart_of_the_orchestrator() -> None:
    written: list[str] = []
    first_piece = asyncio.Event()

    def write(text: str) -> None:
        written.append(text)
        first_piece.set()

    async with AsyncExitStack() as stack:
        (port,) = free_ports(1)
        async with served(lambda _path, _headers: stream(chunk(1, "before ")), port):
            api = await stack.enter_async_context(client(port, resume_seconds=60.0))
            following = asyncio.create_task(follow_job(api, JOB, write))
            await first_piece.wait()
        await stack.enter_async_context(served(lambda _path, _headers: stream(chunk(2, "after"), END), port))
        assert (await following)["state"] == "succeeded"
    assert "".join(written) == "  before after\n"


async def test_stream_that_stays_away_is_given_up() -> None:
    answers = [stream(chunk(1, "one"))]

    def answer(_path: str, _headers: dict[str, str]) -> bytes:
        return answers.pop() if answers else b""

    async with served(answer) as port, client(port, resume_seconds=0.2) as api:
        with pytest.raises(ServiceUnavailable, match="solstice up"):
            await follow_job(api, JOB, ignore_text)


async def test_a_missing_server_is_reported_at_once() -> None:
    async with served(lambda _path, _headers: b"") as port:
        pass
    async with client(port) as api:
        with pytest.raises(ServiceUnavailable, match=rf"no orchestrator answers at http://127.0.0.1:{port}"):
            await api.runs()
        with pytest.raises(ServiceUnavailable, match="SOLSTICE_URL"):
            await follow_job(api, JOB, ignore_text)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            reply('{"error":{"code":"conflict","message":"it is so"}}', status="409 Conflict"),
            ServiceRefused,
            "it is so",
        ),
        (
            reply('{"error":{"code":"store","message":"disk full"}}', status="503 Service Unavailable"),
            ServiceUnavailable,
            "disk full",
        ),
        (reply("<h1>Welcome</h1>", content_type="text/html"), ServiceRefused, "does SOLSTICE_URL name one"),
        (reply("[]"), ServiceRefused, "does SOLSTICE_URL name one"),
    ],
    ids=["refused", "unavailable", "another server", "no object"],
)
async def test_answer_that_is_no_yes_is_an_error_with_its_words(
    answer: bytes, error: type[Exception], words: str
) -> None:
    async with served(lambda _path, _headers: answer) as port, client(port) as api:
        with pytest.raises(error, match=words):
            await api.run(RUN)


async def test_unadmitted_request_has_no_run() -> None:
    missing = reply('{"error":{"code":"not_found","message":"not yet"}}', status="404 Not Found")
    async with served(lambda _path, _headers: missing) as port, client(port) as api:
        assert await api.run_of_request(RUN) is None


async def test_stream_of_something_unknown_is_refused() -> None:
    missing = reply('{"error":{"code":"not_found","message":"no such job"}}', status="404 Not Found")
    async with served(lambda _path, _headers: missing) as port, client(port) as api:
        with pytest.raises(ServiceRefused, match="no such job"):
            async with aclosing(api.log_events(JOB)) as events:
                await anext(events)


def run_document(state: str, *jobs: tuple[str, str]) -> str:
    listed = ",".join(f'{{"job_id":"{name}-id","name":"{name}","state":"{state}"}}' for name, state in jobs)
    return f'{{"run_id":"{RUN}","state":"{state}","jobs":[{listed}]}}'


async def test_logs_of_several_jobs_share_a_terminal_line_by_line() -> None:
    def answer(path: str, _headers: dict[str, str]) -> bytes:
        match path.split("/")[3:]:
            case ["runs", _, "events"]:
                return stream(
                    "event: run\ndata: " + run_document("running", ("lint", "running"), ("test", "blocked")),
                    "event: run\ndata: " + run_document("failed", ("lint", "failed"), ("test", "skipped")),
                )
            case ["runs", _]:
                return reply(run_document("failed", ("lint", "failed"), ("test", "skipped")))
            case _:
                return stream(chunk(1, "a\\nb"), chunk(2, "c\\nd"), END)

    written: list[str] = []
    async with served(answer) as port, client(port) as api:
        run = await follow_run(api, RUN, written.append)
    assert run["state"] == "failed"
    assert written == ["lint |   a\n", "lint |   bc\n", "lint |   d\n"]


async def test_trouble_while_following_a_run_is_one_plain_error() -> None:
    def answer(path: str, _headers: dict[str, str]) -> bytes:
        if path.startswith("/api/v1/runs"):
            return stream("event: run\ndata: " + run_document("running", ("lint", "running")))
        return reply('{"error":{"code":"not_found","message":"the job is gone"}}', status="404 Not Found")

    async with served(answer) as port, client(port) as api:
        with pytest.raises(ServiceRefused, match="the job is gone"):
            await follow_run(api, RUN, ignore_text)


async def test_a_terminal_gets_colours_and_no_commands() -> None:
    nasty = stream(chunk(1, "\\u001b[32mgreen\\u001b[0m\\u001b]0;ti"), chunk(2, "tle\\u0007\\u001b[2J."), END)
    for terminal, shown in (
        (True, "  \x1b[32mgreen\x1b[0m.\x1b[0m\n"),
        (False, "  \x1b[32mgreen\x1b[0m\x1b]0;title\x07\x1b[2J.\n"),
    ):
        written: list[str] = []
        async with served(lambda _path, _headers: nasty) as port, client(port) as api:
            await follow_job(api, JOB, written.append, terminal=terminal)
        assert "".join(written) == shown
