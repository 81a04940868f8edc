"""The settings of attempts after an infrastructure failure."""

from pydantic import Field, model_validator

from solstice_common.settings import SolsticeSettings
from solstice_orchestrator.domain.jobs import MAX_ATTEMPTS
from solstice_orchestrator.domain.retries import (
    ATTEMPTS_LIMIT,
    SECONDS_LIMIT,
    RetryPolicies,
    RetryPolicy,
    check_policy,
    parse_label_retries,
)


class RetrySettings(SolsticeSettings):
    """How often a job is tried after an infrastructure failure, and when."""

    max_attempts: int = Field(
        default=MAX_ATTEMPTS,
        ge=1,
        le=ATTEMPTS_LIMIT,
        description="Attempts of a job, the first included, that may end with an infrastructure failure; then it is errored.",
    )
    retry_base_seconds: float = Field(
        default=5.0,
        ge=0,
        le=SECONDS_LIMIT,
        description="Longest wait before the second attempt after an infrastructure failure; it doubles with each one.",
    )
    retry_max_seconds: float = Field(
        default=300.0, ge=0, le=SECONDS_LIMIT, description="No wait between two attempts is longer."
    )
    retry_jitter: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="The share of a wait that is drawn: 0 waits the longest time, 1 anything down to nothing.",
    )
    label_retries: str = Field(
        default="",
        description="Other numbers for labels, LABEL=ATTEMPTS[:BASE[:MAX[:JITTER]]]: illumos=5:30:600,arm=1.",
    )

    @model_validator(mode="after")
    def _usable_retries(self) -> "RetrySettings":
        check_policy(self._policy, "RETRY_BASE_SECONDS and RETRY_MAX_SECONDS")
        try:
            parse_label_retries(self.label_retries, self._policy)
        except ValueError as error:
            raise ValueError(f"LABEL_RETRIES: {error}") from None
        return self

    @property
    def retries(self) -> RetryPolicies:
        """The policies of all labels."""
        return RetryPolicies(
            default=self._policy, labels=parse_label_retries(self.label_retries, self._policy)
        )

    @property
    def _policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            base_seconds=self.retry_base_seconds,
            max_seconds=self.retry_max_seconds,
            jitter=self.retry_jitter,
        )
