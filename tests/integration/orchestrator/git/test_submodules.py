"""Submodules come from the repository's own host, with its credential, and stay within the workspace."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from solstice_orchestrator.domain.checkout_spec import CheckoutSpec, Submodules
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts import checkout, submodules
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from tests.git_memory import git_memory
from tests.private_forge import TOKEN, PrivateForge
from tests.repositories import GIT_ENVIRONMENT, Repository
from tests.servers.certificates import Authority
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import https_server

DIRECT = CheckoutSpec(submodules=Submodules.DIRECT)
RECURSIVE = CheckoutSpec(submodules=Submodules.RECURSIVE)


class ForgeWithSubmodules(PrivateForge):
    """`river/otter` has the submodule `river/pike`, and that one `lake/perch`; all are private."""

    def __init__(self, folder: Path, signer: Authority) -> None:
        super().__init__(folder, signer)
        self.perch, self.pike = self.add("lake/perch"), self.add("river/pike")
        self.perch_sha = self.perch.commit({"perch.txt": "p"})
        self.pike.commit({"pike.txt": "k"})
        self.pike_sha = self.pike.commit_submodules(
            {"deps/perch": ("../../../lake/perch/.git", self.perch_sha)}
        )
        self.name_submodules({"below/pike": ("../../pike/.git", self.pike_sha)})

    def name_submodules(self, named: dict[str, tuple[str, str]], list_text: str = "") -> None:
        self.sha = self.repository.commit_submodules(named, list_text=list_text)


@pytest.fixture
def forge(tmp_path: Path, signer: Authority) -> Iterator[ForgeWithSubmodules]:
    place = ForgeWithSubmodules(tmp_path, signer)
    handler = place.asking.handler(git_backend(tmp_path / "root"))
    with https_server(handler, signer.sign("forge", "IP:127.0.0.1")) as place.port:
        place.write_rules("**")
        yield place


def git_output(directory: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=directory, env=GIT_ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout.strip()


async def test_submodules_are_checked_out_as_deep_as_the_job_says(forge: ForgeWithSubmodules) -> None:
    plain, direct, recursive = [
        await forge.check_out(spec=spec) for spec in (CheckoutSpec(), DIRECT, RECURSIVE)
    ]
    assert list((plain / "below/pike").iterdir()) == []
    assert (direct / "below/pike/pike.txt").read_text() == "k"
    assert list((direct / "below/pike/deps/perch").iterdir()) == []
    assert (recursive / "below/pike/deps/perch/perch.txt").read_text() == "p"
    for place, sha in ((recursive, forge.sha), (recursive / "below/pike", forge.pike_sha)):
        assert git_output(place, "rev-parse", "HEAD") == sha
        assert git_output(place, "status", "--porcelain") == ""
    everything = git_output(recursive, "submodule", "foreach", "--recursive", "--quiet", "git rev-parse HEAD")
    assert everything.split() == [forge.pike_sha, forge.perch_sha]


async def test_the_history_of_submodules_is_as_deep_as_that_of_the_repository(
    forge: ForgeWithSubmodules,
) -> None:
    spec = CheckoutSpec(depth=0, submodules=Submodules.DIRECT)
    place = await forge.check_out(spec=spec)
    assert git_output(place / "below/pike", "rev-list", "--count", "HEAD") == "2"


async def test_git_fetches_submodules_with_a_token_that_none_of_its_processes_ever_holds(
    forge: ForgeWithSubmodules,
) -> None:
    found: list[str] = []
    searched: set[str] = set()
    forms = (TOKEN.encode(), forge.asking.authorization.removeprefix("Basic ").encode())

    def search(path: str) -> None:
        for where, content in git_memory(forge.folder):
            searched.add(path.partition("/.git/")[0])
            found.extend([where] if any(form in content for form in forms) else [])

    forge.asking.before_answer = search
    place = await forge.check_out(spec=RECURSIVE)
    assert searched == {"/river/otter", "/river/pike", "/lake/perch"}
    assert found == []
    assert {given for _, given in forge.asking.requests} == {forge.asking.authorization}
    for below, name in (
        ("", "river/otter"),
        ("below/pike", "river/pike"),
        ("below/pike/deps/perch", "lake/perch"),
    ):
        assert f'url = "{forge.url_of(name)}"' in (place / below / ".git/config").read_text()
    files = [file.read_bytes() for file in place.rglob("*") if file.is_file()]
    assert not any(form in content or b"Authorization" in content for form in forms for content in files)


async def test_a_second_checkout_fetches_no_submodule_again(forge: ForgeWithSubmodules) -> None:
    objects = ObjectCache(forge.folder / "scratch" / "git" / "objects", 1024**3)
    await forge.check_out(spec=RECURSIVE, objects=objects)
    fetched = len(forge.asking.requests)
    place = await forge.check_out(spec=RECURSIVE, objects=objects)
    assert len(forge.asking.requests) == fetched
    assert (place / "below/pike/deps/perch/perch.txt").read_text() == "p"


async def test_a_submodule_that_the_rule_of_the_repository_does_not_name_gets_no_credential(
    forge: ForgeWithSubmodules,
) -> None:
    forge.write_rules("river/**")
    text = forge.rules.read_text()
    forge.rules.write_text(text + text.replace("river/**", "lake/**"))
    failed = await forge.failure(spec=RECURSIVE)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "submodule below/pike: submodule deps/perch: " in failed.detail
    assert "the rule whose credential fetches the repository does not name this one" in failed.detail
    assert {given for path, given in forge.asking.requests if "perch" in path} == {""}
    assert (await forge.check_out(spec=DIRECT) / "below/pike/pike.txt").exists()


async def test_an_untrusted_run_gets_the_credential_for_no_submodule(
    tmp_path: Path, forge: ForgeWithSubmodules
) -> None:
    failed = await forge.failure(spec=RECURSIVE, trusted=False)
    assert "fetches for trusted runs alone" in failed.detail
    assert {given for _, given in forge.asking.requests} == {""}


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "https://127.0.0.2:1/river/pike",
            "is of 127.0.0.2:1; submodules come from the repository's own host",
        ),
        ("https://evil.example/river/pike", "is of evil.example; submodules"),
        ("git@evil.example:river/pike", "is of evil.example; submodules"),
        ("file:///etc", "is of this machine; submodules"),
        ("/srv/git/pike", "must be a URL with one of the schemes"),
        ("ext::sh -c touch% /tmp/owned", "must not hold white space"),
        ("ssh://-oProxyCommand=id/x", "must name a host"),
        ("../../../../../etc", "leads above the paths of its host"),
    ],
)
async def test_a_submodule_from_elsewhere_fails_the_job_and_is_not_asked_for(
    url: str, sentence: str, forge: ForgeWithSubmodules
) -> None:
    forge.name_submodules({"below/pike": (url, forge.pike_sha)})
    failed = await forge.failure(spec=DIRECT)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    # git itself refuses some of them when it fetches the commit (fsck).
    assert sentence in failed.detail or "gitmodulesUrl: disallowed submodule url" in failed.detail
    assert all("/river/otter/" in path for path, _ in forge.asking.requests)


LIST = '[submodule "x"]\n\tpath = {path}\n\turl = ../../pike/.git\n'


@pytest.mark.parametrize(
    ("list_text", "sentence"),
    [
        (LIST.format(path="../outside"), "'../outside', which is no path within the repository"),
        (LIST.format(path="below/../../outside"), "which is no path within the repository"),
        (LIST.format(path="/etc"), "'/etc', which is no path within the repository"),
        (LIST.format(path="."), "'.', which is no path within the repository"),
        (LIST.format(path="below/pike").replace("url", "update = !id\n\turl"), "gitmodulesUpdate"),
        (LIST.format(path="below/pike").replace("url", "nothing"), "has no URL in .gitmodules"),
        (LIST.format(path="-u./payload"), "gitmodulesPath"),
        (LIST.format(path="below/pike").replace('"x"', '"../../x"'), "gitmodulesName"),
        ("[submodule", ".gitmodules cannot be read: error: bad config line"),
        ("#" * (300 * 1024), ""),
        ("".join(LIST.format(path=f"p{n}").replace('"x"', f'"{n}"') for n in range(300)), "names more than 256"),
    ],
    ids=["above", "above by a way round", "absolute", "itself", "update", "no url", "option", "name", "broken",
         "long", "many"],
)  # fmt: skip
async def test_a_hostile_list_of_submodules_is_refused_or_harmless(
    list_text: str, sentence: str, forge: ForgeWithSubmodules
) -> None:
    forge.name_submodules({"below/pike": ("../../pike/.git", forge.pike_sha)}, list_text)
    if not sentence:
        assert list((await forge.check_out(spec=DIRECT) / "below/pike").iterdir()) == []
        return
    failed = await forge.failure(spec=DIRECT)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert sentence in failed.detail
    assert not (forge.folder / "outside").exists()


async def test_a_list_that_is_a_symbolic_link_is_not_read(forge: ForgeWithSubmodules) -> None:
    listed = forge.repository.path / ".gitmodules"
    listed.rename(forge.repository.path / "elsewhere")
    listed.symlink_to("elsewhere")
    forge.repository.git("add", ".gitmodules", "elsewhere")
    forge.repository.git("commit", "--quiet", "--message", "x")
    forge.sha = forge.repository.git("rev-parse", "HEAD")
    failed = await forge.failure(spec=DIRECT)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "gitmodules" in failed.detail


async def test_no_submodule_is_written_through_a_link_that_came_in_between(
    forge: ForgeWithSubmodules, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = forge.folder / "outside"
    outside.mkdir()
    read = submodules.submodules_of

    async def replaced(*arguments: object) -> object:
        found = await read(*arguments)  # type: ignore[arg-type]  # those of the code
        (place,) = forge.folder.glob("source-*/below/pike")
        place.rmdir()
        place.symlink_to(outside)
        return found

    monkeypatch.setattr(checkout, "submodules_of", replaced)
    failed = await forge.failure(spec=DIRECT)
    assert "leads through a symbolic link" in failed.detail
    assert list(outside.iterdir()) == []


def chain(repository: Repository, length: int) -> str:
    """Commits that each have the one before as a submodule, from the same repository."""
    sha = repository.commit({"end.txt": "x"})
    for _ in range(length):
        sha = repository.commit_submodules({"again": ("./", sha)})
    return sha


@pytest.mark.parametrize(
    ("limit", "most", "sentence"),
    [("MAX_NESTING", 3, "lie deeper than 3"), ("MAX_SUBMODULES", 2, "has more than 2 submodules")],
)
async def test_submodules_without_end_end(
    limit: str, most: int, sentence: str, forge: ForgeWithSubmodules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, limit, most)
    forge.sha = chain(forge.add("river/loop"), 5)
    failed = await forge.failure(spec=RECURSIVE, repo_url=forge.url_of("river/loop"))
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert sentence in failed.detail


async def test_all_submodules_together_take_no_more_than_one_checkout_may(forge: ForgeWithSubmodules) -> None:
    large = forge.add("river/large")
    named = {}
    for number in range(4):
        sha = large.commit({"large.bin": bytes(300 * 1024) + bytes([number])})
        named[f"part-{number}"] = ("../../large/.git", sha)
    forge.name_submodules(named)
    policy = forge.policy()
    limited = GitPolicy(
        protocols=policy.protocols,
        max_bytes=1024**2,
        environment=policy.environment,
        credentials=GitCredentials(str(forge.rules), {}),
    )
    failed = await forge.failure(limited, spec=DIRECT)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert "takes more than 1 MiB on disk" in failed.detail
    forge.name_submodules({"part-0": named["part-0"]})
    assert (await forge.check_out(limited, DIRECT) / "part-0/large.bin").exists()


async def test_a_submodule_commit_that_is_not_there_fails_the_job(forge: ForgeWithSubmodules) -> None:
    forge.name_submodules({"below/pike": ("../../pike/.git", "1" * 40)})
    failed = await forge.failure(spec=DIRECT)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert f"the commit {'1' * 40} is not (or no longer) in {forge.url_of('river/pike')}" in failed.detail


async def test_a_submodule_without_an_entry_in_the_list_stays_empty(forge: ForgeWithSubmodules) -> None:
    forge.name_submodules({"unlisted": ("../../pike/.git", forge.pike_sha)}, "# nothing\n")
    place = await forge.check_out(spec=DIRECT)
    assert list((place / "unlisted").iterdir()) == []
