"""A job gets the secrets that it names, and nothing stored or shown has them."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_approval import waiting_run
from tests.e2e.test_cli import built, wait_for
from tests.servers.solstice_up import SolsticeUp, repository, solstice_up
from tests.used_folders import contents_in_use

SECRET = "heron-otter-reed-7731-and-more-of-it-than-base64-puts-on-one-line-of-its-own"
WORKFLOW = """
job "publish" {
    secret "DEPLOY_KEY"
    step "use" run=#"test ${#DEPLOY_KEY} = 76; echo found it"#
    step "whole" run="echo key $DEPLOY_KEY"
    step "in pieces" run=#"printf %s "${DEPLOY_KEY%reed*}"; sleep 0.6; echo "reed${DEPLOY_KEY#*reed}""#
    step "base64" run="printf 'me:%s' $DEPLOY_KEY | base64"
}
"""
STRANGE = 'job "take" { secret "DEPLOY_KEY"; step run="echo never"; }'


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "deploy-key").write_text(f"{SECRET}\n")
    rules = folder / "secrets.toml"
    rules.write_text(
        '[[rules]]\nrepositories = ["/**/anvil"]\nsecrets = { DEPLOY_KEY = "file:deploy-key" }\n'
    )
    with solstice_up(
        folder / "state", "--untrusted-runs", "approved", "--secrets-config", str(rules)
    ) as running:
        yield running


def stored(up: SolsticeUp) -> bytes:
    """Everything in the state directory: broker, inbox, store, logs."""
    return b"".join(contents_in_use(up.home).values())


def test_job_uses_its_secret_and_no_reader_sees_it(up: SolsticeUp, tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    run = built(up, project)
    log = up.solstice("logs", run["run_id"]).stdout
    assert "found it" in log
    assert log.count("***") >= 3
    for known in (SECRET, "heron-otter-reed", base64.b64encode(SECRET.encode()).decode()[:24]):
        assert known not in log
        assert known.encode() not in stored(up)


def test_job_of_another_repository_fails_and_says_why(up: SolsticeUp, tmp_path: Path) -> None:
    project = repository(tmp_path / "hammer", {".solstice/workflow.kdl": STRANGE})
    run = built(up, project, check=1)
    (job,) = up.api(f"/runs/{run['run_id']}")["jobs"]
    assert (job["state"], job["reason"]) == ("failed", "secret_missing")
    assert "there is no secret DEPLOY_KEY for /" in job["detail"]
    assert "never" not in up.solstice("logs", run["run_id"]).stdout


def test_stranger_s_job_is_given_nothing_also_when_it_is_approved(up: SolsticeUp, tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": STRANGE})
    run = waiting_run(up, project)
    up.solstice("approve", run["run_id"])
    wait_for(lambda: up.api(f"/runs/{run['run_id']}")["state"] == "failed")
    (job,) = up.api(f"/runs/{run['run_id']}")["jobs"]
    assert job["reason"] == "secret_missing"
    assert "may not push" in job["detail"]
