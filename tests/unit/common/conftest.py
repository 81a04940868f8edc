"""Restores the configuration of logging after each test."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For tests that configure logging, which belongs to the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
