"""A GitHub App gets tokens of one repository, from an API that misbehaves on demand."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from solstice_common.messages import Source
from solstice_orchestrator.git.credentials.installation_tokens import (
    InstallationTokens,
    NoToken,
    NoTokenForNow,
    RateLimitReached,
    api_of,
)
from tests.servers.forge_api import ForgeApi, Reply, Reset, Trouble, Truncated, forge_api
from tests.servers.socks_proxy import socks_proxy

NOW = 1_800_000_000.0
URL = "https://github.com/river/otter.git"


class Clocks:
    """The clock of GitHub and ours, in seconds since the epoch."""

    def __init__(self) -> None:
        self.github = self.ours = NOW

    def advance(self, seconds: float) -> None:
        self.github += seconds
        self.ours += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
async def github(clocks: Clocks) -> AsyncIterator[ForgeApi]:
    async with forge_api(Source.GITHUB, clock=lambda: clocks.github) as fake:
        yield fake


@pytest.fixture
def tokens(clocks: Clocks) -> InstallationTokens:
    return InstallationTokens(now=lambda: clocks.ours)


async def token(tokens: InstallationTokens, github: ForgeApi, url: str = URL) -> str:
    return await tokens.token(github.app_id, github.app_pem, f"{github.url}/api/v3", url)


async def test_a_token_reads_one_repository_and_is_used_until_it_is_about_to_expire(
    github: ForgeApi, tokens: InstallationTokens, clocks: Clocks
) -> None:
    first = {await token(tokens, github) for _ in range(3)}
    assert github.tokens == {first.pop(): {"repositories": ["otter"], "permissions": {"contents": "read"}}}
    assert first == set()
    clocks.advance(3600 - 301)
    assert await token(tokens, github) in github.tokens
    assert len(github.tokens) == 1
    clocks.advance(2)
    second = await token(tokens, github)
    assert len(github.tokens) == 2
    tokens.forget(second)
    assert await token(tokens, github) != second


async def test_jobs_that_start_at_once_share_a_token(github: ForgeApi, tokens: InstallationTokens) -> None:
    given = await asyncio.gather(*(token(tokens, github) for _ in range(8)))
    assert set(given) == set(github.tokens)
    assert len(github.calls) == 2


async def test_each_repository_has_a_token_of_its_own(github: ForgeApi, tokens: InstallationTokens) -> None:
    other = await token(tokens, github, "https://github.com/river/pike.git")
    assert other != await token(tokens, github)
    assert [rights["repositories"] for rights in github.tokens.values()] == [["pike"], ["otter"]]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Reply(status=401), r"refused the GitHub App \(401\): compare its id and its private key$"),
        (Reply(status=403), r"refused a token for the GitHub App \(403\)"),
        (Reply(status=404), "is not installed on the repository"),
        (Reply(status=422), r"refused a token for the GitHub App \(422\)"),
        (Reply(status=502), r"failed itself when asked for a token \(502\)"),
        (Reply(status=302, headers={"location": "/stolen"}), r"refused a token for the GitHub App \(302\)"),
        (Reset(), "cannot be asked for a token"),
        (Truncated(), "cannot be asked for a token"),
        (Truncated(fits=True), "gave an answer that is no JSON"),
        (Reply(document=" " * 300_000), "gave an endless answer"),
        (Reply(document=[]), "named no installation"),
        (Reply(document={"id": "../../../user"}), "named no installation"),
    ],
    ids=["401", "403", "404", "422", "502", "redirect", "reset", "cut", "half", "endless", "list", "path"],
)
async def test_an_api_that_gives_no_token_is_named_and_asked_again_next_time(
    trouble: Trouble, words: str, github: ForgeApi, tokens: InstallationTokens
) -> None:
    github.next(trouble)
    with pytest.raises(NoToken, match=words) as caught:
        await token(tokens, github)
    assert not isinstance(caught.value, RateLimitReached)
    assert len(github.calls) == 1
    assert await token(tokens, github) in github.tokens


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 90:.0f}"}, 90),
        (429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, 60),
        (403, {"retry-after": "30"}, 30),
        (429, {}, 60),
        (429, {"retry-after": "9" * 400}, 3600),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "0"}, 1),
    ],
    ids=["used up", "without an end", "secondary", "unnamed", "for ever", "over already"],
)
async def test_during_a_rate_limit_the_api_is_left_alone(
    status: int,
    headers: Mapping[str, str],
    seconds: int,
    github: ForgeApi,
    tokens: InstallationTokens,
    clocks: Clocks,
) -> None:
    github.next(Reply(status=status, headers=headers))
    for passed in (0, seconds - 0.5):
        clocks.advance(passed)
        with pytest.raises(RateLimitReached, match="the rate limit of"):
            await token(tokens, github, f"https://github.com/river/{passed}.git")
    assert len(github.calls) == 1
    clocks.advance(1)
    assert await token(tokens, github) in github.tokens


@pytest.mark.parametrize(
    "wider",
    [
        {"permissions": {"contents": "write", "metadata": "read"}},
        {"permissions": {"contents": "read", "administration": "write"}},
        {"repositories": [{"name": "otter"}, {"name": "pike"}]},
        {"repositories": [{"name": "pike"}]},
        {"repository_selection": "all", "repositories": None},
    ],
    ids=["may push", "may administer", "two repositories", "another repository", "all repositories"],
)
async def test_a_token_that_may_do_more_is_not_used(
    wider: dict[str, Any], github: ForgeApi, tokens: InstallationTokens
) -> None:
    github.widen = wider
    for _ in range(2):
        with pytest.raises(NoToken, match="may do more than read this repository"):
            await token(tokens, github)
    github.widen = {"permissions": None, "repositories": None, "repository_selection": None}
    assert await token(tokens, github) in github.tokens


@pytest.mark.parametrize(
    "answer",
    [
        {"token": None},
        {"token": ""},
        {"token": "ghs_1\r\nX-Header: 1"},
        {"expires_at": 5},
        {"expires_at": "soon"},
        {"permissions": ["contents"]},
        {"repositories": ["otter"]},
        {"repositories": 7},
    ],
    ids=["null", "empty", "two lines", "a number", "no time", "no rights", "no names", "no list"],
)
async def test_an_answer_without_a_token_is_none(
    answer: dict[str, Any], github: ForgeApi, tokens: InstallationTokens
) -> None:
    github.widen = answer
    with pytest.raises(NoToken, match="gave no token"):
        await token(tokens, github)


@pytest.mark.parametrize("ahead", [-500, -50, 50])
async def test_a_token_is_replaced_in_time_also_by_a_wrong_clock(
    ahead: int, github: ForgeApi, tokens: InstallationTokens, clocks: Clocks
) -> None:
    clocks.ours += ahead
    for _ in range(40):
        assert github.expiries[await token(tokens, github)] > clocks.github
        clocks.advance(300)


@pytest.mark.parametrize(("ahead", "words"), [(7200, "7200 s ahead"), (-7200, "7200 s behind")])
async def test_a_clock_by_which_no_sign_in_is_valid_is_named(
    ahead: int, words: str, github: ForgeApi, tokens: InstallationTokens, clocks: Clocks
) -> None:
    clocks.ours += ahead
    with pytest.raises(NoToken, match=f"the clock of this machine is {words}$"):
        await token(tokens, github)


@pytest.mark.parametrize(
    ("url", "api"),
    [(URL, "https://api.github.com"), ("https://git.example:8443/a/b", "https://git.example:8443/api/v3")],
)
def test_the_api_is_that_of_the_repositorys_host(url: str, api: str) -> None:
    assert api_of(url) == api


async def test_a_token_is_asked_for_through_a_socks_proxy(
    github: ForgeApi, tokens: InstallationTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = f"{github.url}/api/v3".replace("127.0.0.1", "github.invalid")
    with socks_proxy() as proxy:
        proxy.hosts["github.invalid"] = "127.0.0.1"
        monkeypatch.setenv("ALL_PROXY", f"socks5h://{proxy.name}")
        assert await tokens.token(github.app_id, github.app_pem, api, URL) in github.tokens
    assert {target.partition(":")[0] for target in proxy.targets} == {"github.invalid"}
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1")
    with pytest.raises(NoTokenForNow):
        await tokens.token(github.app_id, github.app_pem, api, URL.replace("otter", "pike"))
