"""Whether a job is tried again after an infrastructure failure, and when. Pure.

Settings `MAX_ATTEMPTS`, `RETRY_BASE_SECONDS`, `RETRY_MAX_SECONDS`, `RETRY_JITTER` and `LABEL_RETRIES`.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, MAX_ATTEMPTS, Reason

UNCOUNTED_MAX_SECONDS: Final = 60.0
ATTEMPTS_LIMIT: Final = 100
"""The most attempts that may be configured."""
SECONDS_LIMIT: Final = 86_400.0
_NUMBER: Final = r"[0-9]{1,6}(?:\.[0-9]{1,3})?"
_LABEL_ENTRY: Final = re.compile(
    rf"(?P<label>[^\s=,:]+)=(?P<attempts>[0-9]{{1,3}})"
    rf"(?::(?P<base>{_NUMBER})(?::(?P<max>{_NUMBER})(?::(?P<jitter>{_NUMBER}))?)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a job is tried, and how long it waits in between.

    Exponential backoff with jitter (aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter).
    """

    max_attempts: int = MAX_ATTEMPTS
    """Counted attempts, the first included."""
    base_seconds: float = 5.0
    """The longest wait before the second attempt; it doubles with each one."""
    max_seconds: float = 300.0
    """No wait is longer."""
    jitter: float = 1.0
    """The share of a wait that is drawn: with 0 each wait is the longest, with 1 it may be nothing."""

    def next_retry(self, attempts_used: int, reason: Reason, rng: random.Random) -> float | None:
        """Return the seconds to wait after `attempts_used` counted attempts (at least one).

        None when no further attempt follows. Jitter keeps jobs that failed together from returning together.
        """
        if reason not in INFRASTRUCTURE or attempts_used >= self.max_attempts:
            return None
        return self.backoff_ceiling(attempts_used) * rng.uniform(1.0 - self.jitter, 1.0)

    def uncounted_wait(self, tries: int, rng: random.Random) -> float:
        """Seconds to wait after the latest of `tries` uncounted attempts; grows with their number."""
        return rng.uniform(0.5, 1.0) * min(UNCOUNTED_MAX_SECONDS, self.backoff_ceiling(tries))

    def backoff_ceiling(self, failures: int) -> float:
        """Return the longest wait after that many failures in a row (at least one)."""
        # Bounded before it is raised: a float overflows after some thousand failures.
        return min(self.max_seconds, self.base_seconds * 2.0 ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicies:
    """The policy of each label."""

    default: RetryPolicy = field(default_factory=RetryPolicy)
    """Of labels that have none of their own, and of planning."""
    labels: Mapping[str, RetryPolicy] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, label: str) -> RetryPolicy:
        """Return the policy of jobs with this label."""
        return self.labels.get(label, self.default)


DEFAULT_RETRIES: Final = RetryPolicies()


def parse_label_retries(text: str, default: RetryPolicy) -> Mapping[str, RetryPolicy]:
    """Read `illumos=5:30:600:0.5,arm=1`: attempts, base, maximum and jitter.

    What an entry leaves out is the default's. ValueError says what is wrong.
    """
    policies: dict[str, RetryPolicy] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _LABEL_ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{entry!r} is not LABEL=ATTEMPTS[:BASE_SECONDS[:MAX_SECONDS[:JITTER]]]; write for example illumos=5:30:600"
            )
        if match["label"] in policies:
            raise ValueError(f"{match['label']!r} stands there twice")
        policy = replace(
            default,
            max_attempts=int(match["attempts"]),
            base_seconds=_given(match["base"], default.base_seconds),
            max_seconds=_given(match["max"], default.max_seconds),
            jitter=_given(match["jitter"], default.jitter),
        )
        check_policy(policy, entry)
        policies[match["label"]] = policy
    return MappingProxyType(policies)


def check_policy(policy: RetryPolicy, where: str) -> None:
    """Raise ValueError where a number is out of bounds."""
    if not 1 <= policy.max_attempts <= ATTEMPTS_LIMIT:
        raise ValueError(f"{where}: attempts must be 1 to {ATTEMPTS_LIMIT}")
    if not 0 <= policy.base_seconds <= policy.max_seconds <= SECONDS_LIMIT:
        raise ValueError(
            f"{where}: the base must not be above the maximum, and that at most {SECONDS_LIMIT:.0f} s"
        )
    if not 0 <= policy.jitter <= 1:
        raise ValueError(f"{where}: the jitter must lie between 0 and 1")


def _given(text: str | None, default: float) -> float:
    return default if text is None else float(text)
