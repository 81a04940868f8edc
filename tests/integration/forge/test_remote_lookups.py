"""Every lookup about a delivery at every forge, answered by fakes of their APIs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from solstice_common.messages import Source
from solstice_forge.remote import github_calls
from solstice_forge.remote.http import DIALECTS, Remote
from solstice_forge.remote.protocol import (
    CallDone,
    CallPostponed,
    CallRefused,
    ChangeRequestHead,
    ForgeAccess,
    ForgeAccount,
    ForgeCall,
)
from tests.servers.forge_api import TOKEN, Change, ForgeApi, Reply, forge_api

FORGES = (Source.GITHUB, Source.FORGEJO, Source.GITEA, Source.GITLAB)
REPOSITORY = "river/app"
SHA = "a1" * 20
ADA = ForgeAccount(login="ada", id=7)


@asynccontextmanager
async def forge_with_remote(origin: Source) -> AsyncIterator[tuple[ForgeApi, Remote]]:
    async with forge_api(origin) as forge:
        access = ForgeAccess(name="acme", origin=origin, url=forge.url, token=TOKEN)
        async with Remote.open(access) as remote:
            yield forge, remote


def grant(forge: ForgeApi, right: str) -> None:
    forge.rights[REPOSITORY, 7 if forge.origin is Source.GITLAB else "ada"] = right


@pytest.mark.parametrize("origin", FORGES)
@pytest.mark.parametrize(
    "ref", ["refs/heads/main", "refs/heads/feature/a b+c", "refs/tags/v1", "refs/tags/v/1#2"]
)
async def test_ref_leads_to_its_commit(origin: Source, ref: str) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        forge.refs[REPOSITORY, ref] = SHA
        assert await remote.ask(remote.dialect.find_commit(REPOSITORY, ref)) == CallDone(SHA)


@pytest.mark.parametrize("origin", FORGES)
async def test_ref_that_is_not_there_never_will_be(origin: Source) -> None:
    async with forge_with_remote(origin) as (_forge, remote):
        ended = await remote.ask(remote.dialect.find_commit(REPOSITORY, "refs/tags/v9"))
        assert isinstance(ended, CallRefused)
        assert ended.status in {404, 422}


@pytest.mark.parametrize("origin", FORGES)
async def test_head_of_a_change_request(origin: Source) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        forge.changes[REPOSITORY, 3] = Change(sha=SHA)
        expected = ChangeRequestHead(
            commit_sha=SHA, is_fork=False, is_open=True, base_ref="main", head_ref="spring"
        )
        assert await remote.ask(remote.dialect.find_head(REPOSITORY, 3)) == CallDone(expected)


@pytest.mark.parametrize("origin", FORGES)
async def test_head_of_a_fork_that_is_closed(origin: Source) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        forge.changes[REPOSITORY, 3] = Change(sha=SHA, fork="dora/app", is_open=False)
        ended = await remote.ask(remote.dialect.find_head(REPOSITORY, 3))
        assert isinstance(ended, CallDone)
        assert (ended.value.is_fork, ended.value.is_open) == (True, False)
        # GitLab names the fork by its number alone.
        known = None if origin is Source.GITLAB else f"{forge.url}/dora/app.git"
        assert ended.value.head_repo_url == known


@pytest.mark.parametrize("origin", [Source.FORGEJO, Source.GITEA])
async def test_change_request_without_a_fork_is_not_known_to_be_of_the_repository(origin: Source) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        forge.changes[REPOSITORY, 3] = Change(sha=SHA, head_ref="refs/pull/3/head")
        ended = await remote.ask(remote.dialect.find_head(REPOSITORY, 3))
        assert isinstance(ended, CallDone)
        assert ended.value.is_fork is None


def right_of(remote: Remote, person: ForgeAccount = ADA) -> ForgeCall[bool]:
    call = remote.dialect.may_write(REPOSITORY, person)
    assert call is not None
    return call


@pytest.mark.parametrize("origin", FORGES)
@pytest.mark.parametrize(
    ("right", "enough"), [("admin", True), ("write", True), ("read", False), (None, False)]
)
async def test_right_to_write(origin: Source, right: str | None, enough: bool) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        if right is not None:
            grant(forge, right)
        assert await remote.ask(right_of(remote)) == CallDone(enough)


@pytest.mark.parametrize("origin", FORGES)
def test_an_account_without_name_and_id_is_not_looked_up(origin: Source) -> None:
    assert DIALECTS[origin].may_write(REPOSITORY, ForgeAccount(login=None, id=None)) is None


@pytest.mark.parametrize("origin", FORGES)
@pytest.mark.parametrize(
    "document", [{"sha": "short"}, {}, [], None, {"head": 1, "base": {}}, {"commit": {"id": 5, "sha": []}}]
)
async def test_answer_that_is_none_is_asked_for_again(origin: Source, document: object) -> None:
    async with forge_with_remote(origin) as (forge, remote):
        dialect = remote.dialect
        forge.next(Reply(document=document), Reply(document=document))
        assert isinstance(await remote.ask(dialect.find_commit(REPOSITORY, "refs/heads/main")), CallPostponed)
        assert isinstance(await remote.ask(dialect.find_head(REPOSITORY, 3)), CallPostponed)


@pytest.mark.parametrize(("branch", "contained"), [("main", True), ("other/one", False), ("gone", False)])
async def test_commit_is_of_a_branch_that_holds_it(branch: str, contained: bool) -> None:
    async with forge_with_remote(Source.GITHUB) as (forge, remote):
        forge.refs[REPOSITORY, "refs/heads/main"] = SHA
        forge.refs[REPOSITORY, "refs/heads/other/one"] = "b2" * 20
        assert await remote.ask(github_calls.is_on_branch(REPOSITORY, SHA, branch)) == CallDone(contained)
