"""Settings that say something for each label."""

import pytest

from solstice_orchestrator.domain.label_map import parse_executors, parse_image_folders


def test_each_label_has_what_is_written() -> None:
    assert parse_executors(" linux=podman, illumos = qemu ") == {"linux": "podman", "illumos": "qemu"}
    assert parse_executors("") == {}
    assert parse_image_folders("a=/srv/a,b=/srv/b=c") == {"a": "/srv/a", "b": "/srv/b=c"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("linux", "names no label"),
        ("=qemu", "names no label"),
        ("linux=", "names no label"),
        ("a b=qemu", "names no label"),
        ("linux=qemu,linux=podman", "stands there twice"),
        ("linux=docker", "'docker' is none of the executors process, podman, qemu"),
        ("linux=scripted", "is none of the executors"),
    ],
)
def test_a_wrong_executor_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_executors(text)


def test_a_folder_must_be_whole() -> None:
    with pytest.raises(ValueError, match="no absolute path"):
        parse_image_folders("linux=images/debian")
