"""The settings of traces."""

import pytest
from pydantic import ValidationError

from solstice_common.tracing.samplers import Sampler
from solstice_common.tracing.trace_settings import TraceSettings, read_headers


def test_nothing_is_traced_without_an_endpoint() -> None:
    assert (
        TraceSettings(otel_exporter_otlp_endpoint="", otel_traces_sampler="always_on").trace_sampler is None
    )


def test_the_sampler_follows_the_settings() -> None:
    settings = TraceSettings(
        otel_exporter_otlp_endpoint="http://collector:4318/",
        otel_traces_sampler="parentbased_traceidratio",
        otel_traces_sampler_arg=0.25,
    )
    assert settings.otel_exporter_otlp_endpoint == "http://collector:4318"
    assert settings.trace_sampler == Sampler(ratio=0.25, follows_parent=True)


def test_headers_are_named_values_with_percent_escapes() -> None:
    assert read_headers(" Authorization = Basic%20YTpi , x-scope=a=b,") == {
        "authorization": "Basic YTpi",
        "x-scope": "a=b",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"otel_exporter_otlp_endpoint": "collector:4317"},
        {"otel_exporter_otlp_endpoint": "grpc://collector"},
        {"otel_exporter_otlp_headers": "invented-token"},
        {"otel_exporter_otlp_headers": "=invented-token"},
        {"otel_exporter_otlp_headers": "a b=invented-token"},
        {"otel_exporter_otlp_headers": "authorization=invented-token%0d%0ax: y"},
        {"otel_traces_sampler": "jaeger_remote"},
        {"otel_traces_sampler_arg": 1.5},
        {"otel_traces_sampler_arg": float("nan")},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_without_its_secret(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        TraceSettings.model_validate(wrong)
    text = "; ".join(f"{each['loc']} {each['msg']}" for each in refused.value.errors())
    assert "invented-token" not in text
