"""`solstice up`: forge-integration and orchestrator in one process, on the embedded default."""

import asyncio
import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Final

import orjson
import typer
from pydantic import Field, SecretStr
from rich.console import Console
from rich.markup import escape

from solstice_cli.local import local_broker_url, secrets_file, sqlite_url
from solstice_cli.secrets import FORGES, stored_secrets
from solstice_common.cli import running_up
from solstice_common.cli.options import also_flag, with_settings
from solstice_common.cli.output import json_option
from solstice_common.cli.running_up import RunningUp
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.runtime.hidden_secrets import SecretUrl, hide_secrets
from solstice_common.runtime.process import run_until_signalled
from solstice_common.settings import (
    BROKER_URL_DESCRIPTION,
    is_memory,
    known_broker_url,
    state_directory,
    without_password,
)
from solstice_common.storage.private_files import make_state_directory, open_private
from solstice_common.telemetry.logs import configure_logs
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import EVERY_ADDRESS, OrchestratorSettings

LOCK_TRIES: Final = 10
LOCK_PAUSE_SECONDS: Final = 0.05
BROKER_SECONDS: Final = 2.0
"""When the broker is not available by then, the command says that it waits."""
BROKER_POLL_SECONDS: Final = 0.05
BROKER_NAMES: Final[Mapping[str, str]] = {"rabbitmq": "RabbitMQ", "redis": "Redis", "nats": "NATS"}


class UpSettings(ForgeSettings, OrchestratorSettings):
    """The settings of both services, with the embedded broker, and repositories of this machine allowed."""

    broker_may_be_memory = True

    amqp_url: SecretUrl = Field(
        default_factory=local_broker_url,
        description=f"{BROKER_URL_DESCRIPTION[:-1]}, memory: for one that ends with this process.",
        json_schema_extra=also_flag("broker"),
    )
    database_url: SecretUrl = Field(
        default_factory=lambda: sqlite_url("orchestrator.sqlite3"),
        description="Where runs and jobs are stored: sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE, or memory:.",
        json_schema_extra=also_flag("store"),
    )
    forge_inbox_url: SecretUrl = Field(
        default_factory=lambda: sqlite_url("inbox.sqlite3"),
        description="Where deliveries are stored: sqlite:///FILE, postgresql://USER@HOST/DATABASE, or memory:.",
        json_schema_extra=also_flag("inbox"),
    )
    git_protocols: str = Field(
        default="https,http,ssh,file",
        description="Protocols that repositories may be fetched by; file is allowed here: only this machine asks.",
    )
    git_allow_private: bool = Field(
        default=True,
        description="Fetch also from hosts at private addresses; allowed here: only this machine asks.",
    )
    job_path: str = Field(
        default_factory=lambda: os.environ.get("PATH", os.defpath),
        description="PATH of jobs (executor process); by default that of this command.",
    )


@with_settings(UpSettings, serves=True)
def up(
    settings: UpSettings,
    *,
    as_json: Annotated[bool, json_option(prints="Print one line of JSON once it is ready.")] = False,
) -> None:
    """Run both services on this machine.

    Ctrl-C ends it in order.

    A second Ctrl-C does not wait for running jobs. Webhook secrets are made the first time, and stored.
    """
    configure_logs(settings.log_format, settings.log_level)
    environ = hide_secrets(settings)
    with _only_instance():
        secrets = stored_secrets()
        complete, hurry = _with_secrets(settings, secrets), asyncio.Event()
        run_until_signalled(lambda stop: _serve(complete, stop, hurry, environ, as_json=as_json), hurry=hurry)


async def _serve(
    settings: UpSettings,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    environ: Mapping[str, str],
    *,
    as_json: bool,
) -> None:
    """Run both services until `stop`; when one ends early, so does the other."""
    # Imported late: other commands do not load the servers.
    from solstice_common.http.server.serving import bounds_of  # noqa: PLC0415
    from solstice_forge import service  # noqa: PLC0415
    from solstice_orchestrator import daemon  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    webhooks: asyncio.Future[str] = loop.create_future()
    page: asyncio.Future[str] = loop.create_future()

    def listening(host: str, port: int) -> None:
        webhooks.set_result(f"http://{f'[{host}]' if ':' in host else host}:{port}/webhooks")

    async def welcome() -> None:
        here = RunningUp(
            pid=os.getpid(),
            page=running_up.reachable(await page),
            webhooks=running_up.reachable(await webhooks),
            broker=running_up.shareable(settings.amqp_url),
            inbox=running_up.shareable(settings.forge_inbox_url),
            store=running_up.shareable(settings.database_url),
            forge_config=_absolute(settings.forge_config),
        )
        running_up.write(state_directory(), here)
        words = _ready_line if as_json else _ready_words
        words(settings, await page, await webhooks, await _missing_broker(here.page))

    # One process has one set of descriptors for two servers.
    shares = {"http_connections": bounds_of(settings, servers=2).connections}
    async with asyncio.TaskGroup() as tasks:
        # Deliveries link to the page that is served here, too.
        linked = settings.model_copy(update={"public_url": settings.pages_url or "", **shares})
        back = settings.model_copy(
            update={"deliveries_url": settings.deliveries_url or _deliveries_url(settings), **shares}
        )
        tasks.create_task(
            service.serve(linked, stop=stop, listening=listening, environ=environ), name="forge-integration"
        )
        tasks.create_task(
            daemon.run(back, stop, hurry=hurry, on_ready=page.set_result, environ=environ),
            name="orchestrator",
        )
        welcoming = tasks.create_task(welcome(), name="welcome")
        await stop.wait()
        welcoming.cancel()


async def _missing_broker(page: str) -> str | None:
    """Wait a moment for the broker; return why it is unavailable, else None."""
    import httpx2  # noqa: PLC0415  only what serves asks itself

    loop = asyncio.get_running_loop()
    until = loop.time() + BROKER_SECONDS
    async with httpx2.AsyncClient(trust_env=False) as client:
        missing: str | None = None
        while loop.time() < until:
            with contextlib.suppress(httpx2.HTTPError):
                missing = (await client.get(f"{page}/readyz")).json()["missing"].get("broker")
                if missing is None:
                    return None
            await asyncio.sleep(BROKER_POLL_SECONDS)
        return missing


def _absolute(path: str) -> str:
    """Return the path as any working directory understands it; empty stays empty."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _deliveries_url(settings: UpSettings) -> str:
    """Return the URL of forge-integration's pages; empty while its port is unknown."""
    host = settings.forge_host
    if settings.forge_port == 0 or host in EVERY_ADDRESS:
        return ""
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.forge_port}"


@contextlib.contextmanager
def _only_instance() -> Iterator[None]:
    """Allow one `up` per state directory; ConfigurationError names the running one."""
    state = state_directory()
    try:
        make_state_directory()
        file = os.fdopen(
            open_private(state / running_up.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+"
        )
    except OSError as error:
        raise ConfigurationError(
            f"the state directory {state} cannot be used ({error.filename}: {error.strerror}): fix it, or name another with "
            "SOLSTICE_HOME"
        ) from error
    with file:
        try:
            _lock(file)
        except BlockingIOError:
            file.seek(0)
            raise ConfigurationError(
                f"'solstice up' is running already with the state directory {state}"
                f" (process {file.read().strip() or 'unknown'}): use that one, or name another directory and other"
                " ports: SOLSTICE_HOME=DIRECTORY solstice up --forge-port 0 --orchestrator-port 0"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        running_up.remove(state)
        try:
            yield
        finally:
            running_up.remove(state)


def _lock(file: IO[str]) -> None:
    """Lock the file.

    BlockingIOError when another `up` holds the lock, not only a reading command for a moment.
    """
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(LOCK_PAUSE_SECONDS)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _with_secrets(settings: UpSettings, secrets: dict[Source, str]) -> UpSettings:
    """Return the settings with a secret for every forge that has none."""
    fields = {f"{forge.value}_webhook_secret": forge for forge in FORGES}
    missing = {
        field: SecretStr(secrets[forge])
        for field, forge in fields.items()
        if not getattr(settings, field).get_secret_value()
    }
    return settings.model_copy(update=missing)


def _ready_line(settings: UpSettings, page: str, webhooks: str, missing_broker: str | None) -> None:
    line = orjson.dumps(
        {
            "page": page,
            "webhooks": webhooks,
            "broker": _shown_broker(settings),
            "waits_for_broker": missing_broker,
            "secrets": str(secrets_file()),
            "pid": os.getpid(),
        }
    )
    typer.echo(line.decode())


def _shown_broker(settings: UpSettings) -> str:
    url = settings.amqp_url
    return url if url.startswith("sqlite:") else without_password(url)


def _broker_words(settings: UpSettings, missing: str | None) -> str:
    if is_memory(settings.amqp_url):
        return f"{settings.amqp_url}, which ends with this process"
    name = BROKER_NAMES.get(known_broker_url(settings.amqp_url))
    if name is None:
        return f"embedded, {state_directory()}"
    there = f"{name}, {_shown_broker(settings)}"
    return (
        there
        if missing is None
        else f"{there}\n              not there yet, and waited for: {missing}; what comes in is stored meanwhile"
    )


def _ready_words(settings: UpSettings, page: str, webhooks: str, missing_broker: str | None) -> None:
    others = {
        "SOLSTICE_HOME": os.environ.get("SOLSTICE_HOME", ""),
        "AMQP_URL": "" if running_up.shareable(settings.amqp_url) else "...",
    }
    solstice = " ".join(
        [*(f"{name}={shlex.quote(value)}" for name, value in others.items() if value), "solstice"]
    )
    # No other process reaches a broker in memory.
    enqueue = "" if is_memory(settings.amqp_url) else f"  {escape(solstice)} enqueue --follow\n"
    Console(highlight=False, soft_wrap=True).print(
        f"""
[bold green]Solstice CI is up.[/bold green] Ctrl-C ends it.

  page        [link={page}]{page}[/link]
  webhooks    {escape(webhooks)}/{"|".join(forge.value for forge in FORGES)}
  secrets     {escape(str(secrets_file()))}
  broker      {escape(_broker_words(settings, missing_broker))}

In another terminal, inside a git repository:

{enqueue}  {escape(solstice)} webhook send
  {escape(solstice)} runs
"""
    )
