"""`forge-integration check` explains a recorded webhook."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solstice_common.errors import ConfigurationError
from solstice_forge.cli import app
from solstice_forge.decisions.dry_run import described, read_headers
from solstice_forge.decisions.sources import SourceApp, WebhookSource
from tests.webhooks.deliveries import deliveries

PUSH = deliveries()["gitea/push-branch"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    body, headers = tmp_path / "body.json", tmp_path / "headers.txt"
    body.write_bytes(PUSH.body)
    headers.write_text("".join(f"{name}: {value}\r\n" for name, value in PUSH.headers.items()))
    return str(body), str(headers)


def run(files: tuple[str, str], *more: str, secret: str | None = PUSH.secret) -> tuple[int, str]:
    body, headers = files
    result = CliRunner().invoke(
        app,
        ["check", body, "--source", "gitea", "--headers", headers, *more],
        env={"GITEA_WEBHOOK_SECRET": secret},
    )
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_recorded_webhook_is_explained(files: tuple[str, str]) -> None:
    code, output = run(files, "--json")
    result = json.loads(output)
    assert code == 0
    assert (result["genuine"], result["decision"], result["reason"]) == (True, "accepted", "push")
    assert result["request"]["commit_sha"] == PUSH.expected["request"]["commit_sha"]
    assert PUSH.secret not in output


def test_pipe_gets_a_line_per_value(files: tuple[str, str]) -> None:
    _, output = run(files)
    shown = dict(line.split("\t") for line in output.splitlines())
    assert shown["decision"] == "accepted"
    assert shown["request.commit_sha"] == PUSH.expected["request"]["commit_sha"]


def test_table_names_the_request(files: tuple[str, str]) -> None:
    code, output = run(files)
    assert code == 0
    assert "request.commit_sha" in output
    assert "accepted" in output


def test_what_the_forge_has_to_be_asked_for_is_named(tmp_path: Path) -> None:
    one = deliveries()["gitea/comment-retest"]
    body, headers = tmp_path / "b", tmp_path / "h"
    body.write_bytes(one.body)
    headers.write_text(json.dumps(dict(one.headers)))
    code, output = run((str(body), str(headers)), "--json", secret=one.secret)
    result = json.loads(output)
    assert (code, result["decision"], result["request"]) == (0, "accepted", None)
    assert result["detail"].endswith("commit_sha, is_fork, author_permission")


def test_wrong_secret_is_refused_with_exit_code_1(files: tuple[str, str]) -> None:
    code, output = run(files, "--json", secret="another")
    assert code == 1
    assert json.loads(output)["reason"] == "bad_signature"
    assert json.loads(output)["genuine"] is False


def test_signature_can_be_left_out(files: tuple[str, str]) -> None:
    code, output = run(files, "--no-verify", "--json", secret=None)
    assert code == 0
    assert json.loads(output)["genuine"] is None


def test_source_without_a_secret_says_what_to_set(files: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"GITEA_WEBHOOK_SECRET.*--no-verify"):
        run(files, secret=None)


def test_signature_with_a_time_is_checked_as_of_then(tmp_path: Path) -> None:
    one = deliveries()["gitlab/push-branch-signed"]
    body, headers = tmp_path / "b", tmp_path / "h"
    body.write_bytes(one.body)
    headers.write_text(json.dumps(dict(one.headers)))
    arguments = ["check", str(body), "--source", "gitlab", "--headers", str(headers), "--json"]
    env = {"GITLAB_SIGNING_TOKEN": one.secret}
    assert CliRunner().invoke(app, [*arguments, "--at", "2026-09-21T14:15:00Z"], env=env).exit_code == 0
    late = CliRunner().invoke(app, [*arguments, "--at", "2026-09-21T15:00:00Z"], env=env)
    assert late.exit_code == 1
    assert "webhook-timestamp" in json.loads(late.output)["detail"]


def test_headers_are_lines_or_a_json_object() -> None:
    assert read_headers('{"X-One": "1"}') == {"x-one": "1"}
    assert read_headers("X-One: 1\n\nX-Two:2\n") == {"x-one": "1", "x-two": "2"}


@pytest.mark.parametrize("text", ["X-One", ": 1", '{"a": 1}', '{"a": '])
def test_headers_that_are_neither_are_reported(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--headers"):
        read_headers(text)


def test_sources_are_shown_without_a_webhook(tmp_path: Path) -> None:
    file = tmp_path / "forges.toml"
    file.write_text(
        "[sources.acme]\nforge = 'gitea'\nurl = 'https://forge.example'\nsecrets = ['plain:hush']\n"
    )
    result = CliRunner().invoke(app, ["check", "--forge-config", str(file), "--json"])
    assert result.exit_code == 0
    (shown,) = json.loads(result.output)
    assert (shown["webhooks"], shown["forge"], shown["secrets"]) == ("/webhooks/acme", "gitea", 1)
    table = CliRunner().invoke(app, ["check", "--forge-config", str(file)])
    assert table.output == "acme\t/webhooks/acme\tgitea\thttps://forge.example\t1\t\t0\n"
    assert "hush" not in result.output + table.output


@pytest.mark.parametrize(
    ("credentials", "shown"),
    [
        ({}, None),
        ({"token": "hush"}, "token"),
        ({"token": "hush", "app": SourceApp(id=1, private_key="hush")}, "app"),
    ],
    ids=["none", "token", "app"],
)
def test_source_is_described_without_its_secrets(credentials: dict[str, Any], shown: str | None) -> None:
    source = WebhookSource(name="acme", forge=PUSH.source.forge, secrets=("hush", "hush too"), **credentials)
    assert described(source) == {
        "source": "acme",
        "webhooks": "/webhooks/acme",
        "forge": "gitea",
        "url": None,
        "secrets": 2,
        "credentials": shown,
        "rules": 0,
    }


def test_what_is_wrong_with_the_sources_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "forges.toml"
    file.write_text("[sources.acme]\nforge = 'gitea'\n")
    result = CliRunner().invoke(app, ["check", "--forge-config", str(file)])
    assert isinstance(result.exception, ConfigurationError)
    assert "sources.acme.secrets: is missing" in str(result.exception)


def test_recorded_webhook_needs_its_source_and_headers(files: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["check", files[0]])
    assert isinstance(result.exception, ConfigurationError)
    assert "--source and --headers" in str(result.exception)
