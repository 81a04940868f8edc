"""Decides which traces are recorded, as OTEL_TRACES_SAMPLER says. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

SamplerName = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
"""The samplers that OpenTelemetry names for OTEL_TRACES_SAMPLER, and that need nothing but a trace's id."""
_PARENT_BASED: Final = "parentbased_"
_LOW_DIGITS: Final = 16
"""The hexadecimal digits at the end of a trace id that are random in every tracer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Records this share of all traces, the same ones in every service."""

    ratio: float
    follows_parent: bool
    """Whether the decision about a trace's parent holds, where there is one."""

    def samples(self, trace_id: str, *, parent: bool | None) -> bool:
        """Whether the trace is recorded; `parent` is the decision about its parent."""
        if self.follows_parent and parent is not None:
            return parent
        return int(trace_id[-_LOW_DIGITS:], 16) < round(self.ratio * 16**_LOW_DIGITS)


def sampler_of(name: SamplerName, ratio: float) -> Sampler:
    """Return the sampler of that name; `ratio` counts for those that end in `traceidratio`."""
    word = name.removeprefix(_PARENT_BASED)
    share = {"always_on": 1.0, "always_off": 0.0}.get(word, ratio)
    return Sampler(ratio=share, follows_parent=name.startswith(_PARENT_BASED))
