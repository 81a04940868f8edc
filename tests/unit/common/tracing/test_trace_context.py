"""Which trace a request belongs to, and the ids of its spans."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import JobRequestV1
from solstice_common.tracing.request_trace import message_traceparent, publish_span_id, webhook_span_id
from solstice_common.tracing.samplers import Sampler, SamplerName, sampler_of
from solstice_common.tracing.trace_context import Trace, read_traceparent, trace_of
from tests.builders import job_request

ALWAYS = Sampler(ratio=1.0, follows_parent=True)
NEVER = Sampler(ratio=0.0, follows_parent=True)
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
GIVEN = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def test_a_traceparent_is_continued() -> None:
    assert trace_of(GIVEN, "request", ALWAYS) == Trace(TRACE_ID, "b7ad6b7169203331", True)


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "00",
        GIVEN.upper(),
        f"{GIVEN}-more",
        f"01{GIVEN[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{GIVEN}\n",
    ],
)
def test_without_a_valid_traceparent_the_trace_is_the_requests_own(traceparent: str | None) -> None:
    assert read_traceparent(traceparent) is None
    trace = trace_of(traceparent, "request", ALWAYS)
    assert trace.parent_id is None
    assert re.fullmatch("[0-9a-f]{32}", trace.trace_id)
    assert trace == trace_of(None, "request", ALWAYS)
    assert trace.trace_id != trace_of(None, "another", ALWAYS).trace_id


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    read_traceparent(text)


def test_the_flag_alone_says_whether_a_trace_is_sampled() -> None:
    flags = {flag: read_traceparent(f"{GIVEN[:-2]}{flag:02x}") for flag in (0, 1, 2, 3, 255)}
    assert {flag: trace and trace.sampled for flag, trace in flags.items()} == {
        0: False,
        1: True,
        2: False,
        3: True,
        255: True,
    }


def test_the_same_work_has_the_same_span_in_every_process() -> None:
    trace = trace_of(GIVEN, "request", ALWAYS)
    assert trace.span_id("attempt", "job", 1) == trace_of(GIVEN, "request", ALWAYS).span_id(
        "attempt", "job", 1
    )
    ids = {
        trace.span_id("attempt", "job", 1),
        trace.span_id("attempt", "job", 2),
        trace.span_id("wait", "job", 1),
        trace.span_id("attempt", "job1"),
        trace_of(None, "request", ALWAYS).span_id("attempt", "job", 1),
    }
    assert len(ids) == 5


def test_a_message_names_the_span_of_its_publishing() -> None:
    sent = read_traceparent(message_traceparent(GIVEN, "request", ALWAYS))
    assert sent is not None
    assert (sent.trace_id, sent.sampled) == (TRACE_ID, True)
    assert sent.parent_id == publish_span_id(sent, "request") != webhook_span_id(sent, "request")


def test_a_message_has_a_traceparent_that_its_schema_allows() -> None:
    traceparent = message_traceparent(None, "request", NEVER)
    assert traceparent.endswith("-00")
    assert JobRequestV1.decode(job_request(traceparent=traceparent).encode()).traceparent == traceparent


@pytest.mark.parametrize(
    ("name", "ratio", "parent", "expected"),
    [
        ("always_on", 0.0, False, True),
        ("always_off", 1.0, True, False),
        ("traceidratio", 1.0, False, True),
        ("traceidratio", 0.0, True, False),
        ("parentbased_always_on", 0.0, None, True),
        ("parentbased_always_on", 1.0, False, False),
        ("parentbased_always_off", 1.0, None, False),
        ("parentbased_always_off", 0.0, True, True),
        ("parentbased_traceidratio", 1.0, None, True),
        ("parentbased_traceidratio", 1.0, False, False),
        ("parentbased_traceidratio", 0.0, None, False),
    ],
)
def test_samplers_decide_as_opentelemetry_says(
    name: SamplerName, ratio: float, parent: bool | None, expected: bool
) -> None:
    assert sampler_of(name, ratio).samples(TRACE_ID, parent=parent) is expected


def test_a_ratio_samples_that_share_of_traces_and_the_lower_ratio_a_part_of_them() -> None:
    ids = [trace_of(None, f"request {number}", ALWAYS).trace_id for number in range(4000)]
    quarter, tenth = (sampler_of("traceidratio", ratio) for ratio in (0.25, 0.1))
    of_quarter = {each for each in ids if quarter.samples(each, parent=None)}
    of_tenth = {each for each in ids if tenth.samples(each, parent=None)}
    assert 850 < len(of_quarter) < 1150
    assert 300 < len(of_tenth) < 500
    assert of_tenth < of_quarter
