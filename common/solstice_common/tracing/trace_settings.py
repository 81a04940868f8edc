"""The settings of traces, by the variables that OpenTelemetry names for them."""

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator

from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import SolsticeSettings, http_address
from solstice_common.tracing.samplers import Sampler, SamplerName, sampler_of


class TraceSettings(SolsticeSettings):
    """Where traces are sent, and which ones."""

    otel_exporter_otlp_endpoint: SecretUrl = Field(
        default="",
        description="OpenTelemetry collector that takes traces over HTTP (http://HOST:4318); empty: nothing is traced.",
    )
    otel_exporter_otlp_headers: SecretStr = Field(
        default=SecretStr(""),
        description="Headers for the collector, as NAME=VALUE by commas, with percent escapes; often a token.",
    )
    otel_traces_sampler: SamplerName = Field(
        default="parentbased_always_on",
        description="Which requests are traced; parentbased_ follows the decision that a traceparent brings.",
    )
    otel_traces_sampler_arg: float = Field(
        default=1.0, ge=0, le=1, description="The share of requests that the traceidratio samplers trace."
    )
    otel_service_name: str = Field(
        default="",
        description="The service's name in traces; empty: forge-integration or orchestrator.",
    )

    @field_validator("otel_exporter_otlp_endpoint")
    @classmethod
    def _http_or_empty(cls, url: str) -> str:
        return http_address(url) if url else url

    @field_validator("otel_exporter_otlp_headers")
    @classmethod
    def _named_values(cls, headers: SecretStr) -> SecretStr:
        read_headers(headers.get_secret_value())
        return headers

    @property
    def trace_sampler(self) -> Sampler | None:
        """Return which requests are traced; None when none are."""
        if not self.otel_exporter_otlp_endpoint:
            return None
        return sampler_of(self.otel_traces_sampler, self.otel_traces_sampler_arg)


def read_headers(text: str) -> Mapping[str, str]:
    """Return the headers of the setting; ValueError, which repeats none, for any other text."""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, mark, value = (unquote(each.strip()) for each in part.partition("="))
        if not (mark and name and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise ValueError("must be NAME=VALUE, several by commas")
        if not (value.isascii() and value.isprintable()):
            raise ValueError("must have values of printable ASCII, with percent escapes for all else")
        headers[name.lower()] = value
    return MappingProxyType(headers)
