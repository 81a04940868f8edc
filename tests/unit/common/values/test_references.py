"""What a reference to a secret gives, and what it says when it gives nothing."""

import re
from pathlib import Path

import pytest

from solstice_common.values.references import ADVICE, References


@pytest.fixture
def references(tmp_path: Path) -> References:
    (tmp_path / "key").write_text("\nmaple lantern \r\n\n")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    return References(folder=tmp_path, environ={"KEY": "otter\n", "EMPTY": " "})


@pytest.mark.parametrize(
    ("reference", "value"),
    [("env:KEY", "otter"), ("file:key", "maple lantern "), ("plain:a:b", "a:b")],
)
def test_reference_gives_the_text_without_line_breaks_around_it(
    references: References, reference: str, value: str
) -> None:
    assert references.value(reference) == value


def test_reference_to_a_whole_path_does_not_count_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("otter")
    elsewhere = References(folder=tmp_path / "other", environ={})
    assert elsewhere.value(f"file:{tmp_path / 'key'}") == "otter"


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("env:EMPTY", "the environment variable EMPTY is not set or empty: set it, or remove this"),
        ("env:NONE", "the environment variable NONE is not set or empty: set it, or remove this"),
        ("file:empty", "the file {folder}/empty is empty: write the secret into it"),
        ("file:none", "the file {folder}/none cannot be read: No such file or directory"),
        ("file:bytes", "the file {folder}/bytes cannot be read: not UTF-8"),
        ("plain:", "holds nothing after plain:"),
        ("maple", f"a secret does not stand here as it is: {ADVICE}"),
        ("vault:maple", f"a secret does not stand here as it is: {ADVICE}"),
    ],
)
def test_reference_that_gives_nothing_says_what_is_missing(
    references: References, reference: str, shown: str
) -> None:
    whole = re.escape(shown.format(folder=references.folder))
    with pytest.raises(ValueError, match=f"^{whole}$"):
        references.value(reference)
