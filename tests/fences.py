"""Marks tests of a fence, which run only where the library's inside is used."""

import pytest

from solstice_common.runtime.public_interfaces import VARIABLE, Library, public_only


def asks_for_inside(library: Library) -> pytest.MarkDecorator:
    """The mark of a test that only the inside of the library can pass."""
    return pytest.mark.skipif(
        public_only(library), reason=f"not asked for: {VARIABLE} leaves out the inside of {library}"
    )
