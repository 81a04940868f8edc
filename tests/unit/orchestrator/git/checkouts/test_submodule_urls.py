"""A submodule is fetched from the host of its repository alone."""

import re

import pytest

from solstice_orchestrator.git.checkouts.submodule_urls import submodule_url

OTTER = "https://forge.example:8443/river/otter.git"


@pytest.mark.parametrize(
    ("repo_url", "written", "url"),
    [
        (OTTER, "../pike.git", "https://forge.example:8443/river/pike.git"),
        (OTTER, "./below", "https://forge.example:8443/river/otter.git/below"),
        (OTTER, "../../lake/perch", "https://forge.example:8443/lake/perch"),
        (OTTER, "../a/../pike", "https://forge.example:8443/river/pike"),
        (OTTER, "https://forge.example:8443/lake/perch.git", "https://forge.example:8443/lake/perch.git"),
        (OTTER, "https://mika:secret@FORGE.example:8443/lake/perch", "https://forge.example:8443/lake/perch"),
        (OTTER, "git@forge.example:lake/perch.git", "https://forge.example:8443/lake/perch.git"),
        (OTTER, "ssh://git@forge.example:2222/lake/perch", "https://forge.example:8443/lake/perch"),
        (OTTER, "http://forge.example/lake/perch", "https://forge.example:8443/lake/perch"),
        ("ssh://git@forge.example/river/otter", "https://forge.example/pike", "ssh://git@forge.example/pike"),
        ("ssh://git@forge.example/river/otter", "../pike", "ssh://git@forge.example/river/pike"),
    ],
)
def test_a_submodule_of_the_same_host_is_fetched_as_its_repository_is(
    repo_url: str, written: str, url: str
) -> None:
    assert submodule_url(repo_url, written) == url


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("https://evil.example/river/pike", "is of evil.example; submodules come from the repository's own"),
        ("https://forge.example/river/pike", "is of forge.example; submodules"),
        ("https://forge.example:8443@evil.example/pike", "is of evil.example; submodules"),
        ("https://forge.example.evil.example:8443/pike", "is of forge.example.evil.example:8443; submodules"),
        ("git@evil.example:river/pike", "is of evil.example; submodules"),
        ("file:///etc", "is of this machine; submodules"),
        ("/srv/git/pike", "must be a URL with one of the schemes"),
        ("pike", "must be a URL with one of the schemes"),
        ("ext::sh -c id", "must not hold white space"),
        ("ext::id", "must be a URL with one of the schemes"),
        ("fd::17/x", "must be a URL with one of the schemes"),
        ("--upload-pack=id", "must not start with '-'"),
        ("ssh://-oProxyCommand=id/pike", "must name a host"),
        ("../../../pike", "leads above the paths of its host"),
        ("../%2e%2e/pike", "must not hold '.' or '..'"),
        ("../pike?service=x", "must not hold '?' or '#'"),
        ("../pi\nke", "must not hold white space"),
        ("https://forge.example:8443/river/../pike", "must not hold '.' or '..'"),
        ("rsync://forge.example/pike", "has the scheme 'rsync'"),
    ],
)
def test_a_submodule_from_elsewhere_is_refused(written: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        submodule_url(OTTER, written)


@pytest.mark.parametrize("written", ["../pike", "file:///srv/git/pike", "https://forge.example/pike"])
def test_a_repository_of_this_machine_has_no_submodules(written: str) -> None:
    with pytest.raises(ValueError, match="whose submodules are not fetched"):
        submodule_url("file:///srv/git/otter", written)
