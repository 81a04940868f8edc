"""The launcher of each label, by the settings."""

import pytest

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.worker.executors.host_launcher import HostLauncher
from solstice_orchestrator.worker.launchers import open_launchers


async def test_a_label_without_an_executor_of_its_own_has_that_of_all() -> None:
    settings = OrchestratorSettings(executor_map="illumos=process", job_path="/bin")
    launchers = await open_launchers(settings, {}, V1_TRUST)
    for label in ("linux", "illumos"):
        assert launchers.of(label) == HostLauncher(path="/bin")
    assert not launchers.isolates


async def test_a_label_with_vms_needs_an_image() -> None:
    settings = OrchestratorSettings(executor_map="illumos=qemu")
    with pytest.raises(ConfigurationError, match="EXECUTOR=qemu"):
        await open_launchers(settings, {}, V1_TRUST)
