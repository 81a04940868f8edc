"""`solstice webhook send`: a signed fake delivery, for trying things without a forge."""

import asyncio
import re
import subprocess
import time
import uuid
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import httpx2
import orjson
import typer

from solstice_cli.demo.deliveries import EventName, RefChange, SignedDelivery, signed_delivery
from solstice_cli.secrets import stored_secret
from solstice_common.addresses.system_errors import cause_in_words
from solstice_common.cli import running_up
from solstice_common.cli.local_repository import as_url, git_environment
from solstice_common.cli.output import json_option, note_when_slow, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.errors import ConfigurationError, ServiceUnavailable
from solstice_common.messages import Source
from solstice_common.settings import without_password
from solstice_common.values.repo_urls import from_scp, full_name_of

app = typer.Typer(
    help="Try webhooks without a forge.", no_args_is_help=True, context_settings=CONTEXT_SETTINGS
)

DEFAULT_URL: Final = "http://127.0.0.1:8080"
COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

WebhookSecret = Annotated[
    str | None,
    typer.Option(
        help="Webhook secret.",
        envvar="SOLSTICE_WEBHOOK_SECRET",
        show_default="the one 'solstice up' made",
    ),
]


@app.callback()
def _group() -> None:
    """Keep `send` a word of its own."""


@app.command()
def send(
    url: Annotated[
        str | None,
        typer.Argument(
            help="Address of forge-integration; /webhooks/SOURCE is added if it has no path.",
            show_default=f"that of the running 'solstice up', else {DEFAULT_URL}",
        ),
    ] = None,
    *,
    source: Annotated[Source, typer.Option(help="The forge to imitate.")] = Source.FORGEJO,
    event: Annotated[str, typer.Option(help="push or pull_request.")] = "push",
    repo_url: Annotated[str, typer.Option(help="Repository: a URL, or a folder of this machine.")] = ".",
    ref: Annotated[
        str | None,
        typer.Option(help="refs/heads/NAME or refs/tags/NAME.", show_default="the folder's branch"),
    ] = None,
    sha: Annotated[str | None, typer.Option(help="Commit.", show_default="the folder's HEAD")] = None,
    repo_full_name: Annotated[
        str | None, typer.Option(help="OWNER/NAME.", show_default="the end of the URL")
    ] = None,
    secret: WebhookSecret = None,
    delivery_id: Annotated[str | None, typer.Option(help="Delivery id.", show_default="a new one")] = None,
    as_json: Annotated[bool, json_option(prints="Print the answer as JSON.")] = False,
) -> None:
    """Send a webhook as a forge would.

    Exit 0 when it was taken.
    """
    secret = webhook_secret(source, secret)
    delivery = signed_delivery(
        source,
        _event(event),
        _change(repo_url, ref, sha, repo_full_name),
        secret=secret,
        delivery_id=delivery_id or str(uuid.uuid4()),
        now=time.time(),
    )
    target = webhook_target(url, source)
    with note_when_slow(f"forge-integration at {without_password(target)}"):
        response = asyncio.run(_post(target, delivery))
    answer = _answer(response)
    if as_json:
        print_json({"status": response.status_code, "answer": answer})
    else:
        typer.echo(f"{response.status_code} {response.reason_phrase}")
        for name, value in answer.items():
            typer.echo(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    raise typer.Exit(Exit.OK if response.is_success else Exit.FAILED)


def webhook_secret(source: Source, given: str | None) -> str:
    """Return the secret that signs deliveries of a source.

    Without a given one it is that of `solstice up`. ConfigurationError says what is wrong, never the secret.
    """
    if source is Source.MANUAL:
        raise ConfigurationError("--source manual is no forge: choose github, forgejo, gitea or gitlab")
    secret = given or stored_secret(source)
    if not secret:
        raise ConfigurationError(
            f"no secret for {source.value}: give --secret, the one that forge-integration was started with"
        )
    if (
        not secret.isprintable()
        or secret != secret.strip()
        or not (secret.isascii() or source is not Source.GITLAB)
    ):
        # GitLab sends it in a header, and the HTTP client's error would repeat it.
        raise ConfigurationError(
            "--secret: begins or ends with a space, or has characters that cannot be sent: give it without line breaks, "
            "and to GitLab in ASCII"
        )
    return secret


def webhook_target(url: str | None, source: Source) -> str:
    """Return the address of a source's webhook; without a URL, at the running `solstice up`."""
    url = url or _running_here()
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _no_url(url) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _no_url(url)
    has_path = parts.path not in {"", "/"}
    return url if has_path else f"{url.rstrip('/')}/webhooks/{source.value}"


def _no_url(url: str) -> ConfigurationError:
    # The value and a library's words about it are not repeated: they may hold a password.
    return ConfigurationError(f"{without_password(url)} is no URL: write http://HOST:PORT")


def _running_here() -> str:
    running = running_up.read()
    return running.webhooks.removesuffix("/webhooks") if running else DEFAULT_URL


async def _post(url: str, delivery: SignedDelivery) -> httpx2.Response:
    try:
        async with httpx2.AsyncClient(timeout=30.0, trust_env=False) as http:
            return await http.post(url, content=delivery.body, headers=dict(delivery.headers))
    except httpx2.HTTPError as error:
        raise ServiceUnavailable(
            "forge-integration",
            without_password(url),
            cause_in_words(error),
            "start one with 'solstice up', or give its URL",
        ) from error
    except httpx2.InvalidURL:
        raise _no_url(url) from None


def _answer(response: httpx2.Response) -> dict[str, object]:
    try:
        document = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {"body": response.text[:1000]}
    return document if isinstance(document, dict) else {"body": document}


def _event(typed: str) -> EventName:
    match typed:
        case "push" | "pull_request":
            return typed
        case _:
            raise ConfigurationError(f"--event {typed!r}: choose push or pull_request")


def _change(repo_url: str, ref: str | None, sha: str | None, full_name: str | None) -> RefChange:
    """Return the event to send, completed from the folder of a repository on this machine."""
    repo_url = from_scp(repo_url) or repo_url if not Path(repo_url).is_dir() else repo_url
    folder = Path(repo_url).resolve() if "://" not in repo_url else None
    if folder is not None:
        if not folder.is_dir():
            raise ConfigurationError(f"--repo-url {repo_url!r} is neither a URL nor a folder of this machine")
        ref = ref or _git(folder, "symbolic-ref", "HEAD")
        sha = sha or _git(folder, "rev-parse", "HEAD")
        repo_url = as_url(str(folder))
    if not ref or not sha:
        raise ConfigurationError("--ref and --sha are needed when --repo-url is not a folder of this machine")
    if not COMMIT.fullmatch(sha):
        raise ConfigurationError(f"--sha {sha!r}: the full commit id is needed, 40 or 64 hexadecimal digits")
    if not ref.startswith("refs/"):
        ref = f"refs/heads/{ref}"
    return RefChange(
        repo_url=repo_url,
        repo_full_name=full_name or full_name_of(repo_url) or "",
        ref=ref,
        commit_sha=sha,
    )


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=git_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except FileNotFoundError:
        raise ConfigurationError(
            "git is not on the PATH: install it, or name --repo-url URL, --ref and --sha"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"git {' '.join(arguments)} in {folder} took longer than 30 s") from None
    if done.returncode:
        raise ConfigurationError(
            f"{folder}: git says: {done.stderr.strip()}. Go into a repository with a commit on a branch, "
            "or name one with --repo-url, --ref and --sha"
        )
    return done.stdout.strip()
