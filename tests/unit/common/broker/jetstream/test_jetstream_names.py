"""A queue's name becomes a stream's, and no two become the same."""

import pytest

from solstice_common.broker.jetstream.jetstream_names import presence_subject, stream_of
from solstice_common.errors import ConfigurationError


def test_dots_become_underscores() -> None:
    assert stream_of("solstice.jobs.v1.dlq") == "solstice_jobs_v1_dlq"
    assert presence_subject("solstice.jobs.v1") == "solstice.presence.solstice.jobs.v1"


@pytest.mark.parametrize(
    "name", ["jobs_v1", "jobs.*", "jobs.>", "jobs v1", ".jobs", "jobs..v1", "jobs.", "", "jöbs"]
)
def test_name_that_would_collide_or_is_no_subject_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="subject of NATS"):
        stream_of(name)
