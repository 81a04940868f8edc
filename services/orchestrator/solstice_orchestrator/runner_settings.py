"""The settings of what fetches and runs code: git, workspaces, executors. `OrchestratorSettings` inherits them."""

import os
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator
from solstice_common.messages import REPO_URL_SCHEMES
from solstice_common.settings import SolsticeSettings, state_directory

from solstice_orchestrator.git import PASSED_ON, GitPolicy

MEBIBYTE: Final = 1024 * 1024


class RunnerSettings(SolsticeSettings):
    """What may be fetched, where jobs work, how they are ended."""

    work_dir: Path = Field(
        default_factory=lambda: state_directory() / "work",
        description="Where workspaces are made; several orchestrators of one machine may share it.",
    )
    git_protocols: str = Field(
        default="https,http,ssh",
        description="Protocols that repositories may be fetched by; file and git can be added.",
    )
    checkout_seconds: float = Field(
        default=600.0, gt=0, description="How long fetching and checking out a commit may take."
    )
    checkout_max_mib: int = Field(
        default=4096, ge=1, description="How much disk a checked-out commit may take, in MiB."
    )
    planning_seconds: float = Field(
        default=60.0, gt=0, description="How long fetching a workflow file may take."
    )
    untrusted_runs: Literal["refuse", "run"] = Field(
        default="refuse",
        description="Code from forks, when the executor does not isolate: refuse it, or run it all the same.",
    )
    job_path: str = Field(
        default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        description="PATH of jobs (executor process).",
    )
    cancel_grace_seconds: float = Field(
        default=10.0, ge=0, description="What a cancelled or timed-out job has between SIGTERM and SIGKILL."
    )
    max_log_mib: int = Field(default=16, ge=1, description="How much of a job's log is kept, in MiB.")

    @field_validator("git_protocols")
    @classmethod
    def _known_protocols(cls, text: str) -> str:
        names = [name.strip() for name in text.split(",")]
        unknown = sorted(set(names) - REPO_URL_SCHEMES)
        if unknown:
            raise ValueError(
                f"{', '.join(map(repr, unknown))} cannot be allowed; known are {', '.join(sorted(REPO_URL_SCHEMES))}"
            )
        return ",".join(names)

    def git_policy(self) -> GitPolicy:
        """What git is allowed, with what it may know of this process's environment."""
        return GitPolicy(
            protocols=tuple(self.git_protocols.split(",")),
            timeout_seconds=self.checkout_seconds,
            max_bytes=self.checkout_max_mib * MEBIBYTE,
            planning_timeout_seconds=self.planning_seconds,
            environment={name: value for name, value in os.environ.items() if name in PASSED_ON},
        )
