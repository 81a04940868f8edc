"""Open what launches jobs, for each label, from the settings."""

from collections.abc import Mapping
from typing import Final

from solstice_common.messages import Source
from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.domain.label_map import parse_executors
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts, parse_networks
from solstice_orchestrator.settings import OrchestratorSettings, split
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.images import read_login_rules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.executors.host_launcher import HostLauncher
from solstice_orchestrator.worker.executors.launcher import Launcher, LaunchersByLabel
from solstice_orchestrator.worker.executors.vms.qemu_launcher import open_qemu
from solstice_orchestrator.worker.executors.vms.vm_images import read_vm_images
from solstice_orchestrator.worker.executors.vms.vm_plan import VmRules

MIB: Final = 1024 * 1024


async def open_launchers(
    settings: OrchestratorSettings, environ: Mapping[str, str], v1_trust: frozenset[Source]
) -> LaunchersByLabel:
    """Return the launcher of each label, once what it needs has shown that it works.

    Raises ConfigurationError, with one sentence that says what is missing.
    """
    by_label = parse_executors(settings.executor_map)
    kinds = {settings.executor, *by_label.values()}
    launchers: dict[str, Launcher] = {kind: HostLauncher(path=settings.job_path) for kind in kinds}
    if "podman" in kinds:
        rules = _container_rules(settings, v1_trust)
        launchers["podman"] = await open_podman(environ, rules, settings.registry_logins)
    if "qemu" in kinds:
        launchers["qemu"] = await open_qemu(_vm_rules(settings, v1_trust), settings.vm_acceleration)
    return LaunchersByLabel(
        default=launchers[settings.executor],
        by_label={label: launchers[kind] for label, kind in by_label.items()},
    )


def _container_rules(settings: OrchestratorSettings, v1_trust: frozenset[Source]) -> ContainerRules:
    return ContainerRules(
        default_image=settings.default_image,
        allowed=split(settings.allowed_images),
        logins=read_login_rules(settings.registry_logins),
        pull=settings.image_pull,
        network=settings.container_network,
        egress=AllowedHosts(
            hosts=parse_hosts(settings.untrusted_egress),
            networks=parse_networks(settings.untrusted_egress_private),
            most_bytes=settings.untrusted_egress_mib * MIB,
        ),
        memory_bytes=settings.container_memory_mib * MIB,
        cpus=settings.container_cpus,
        processes=settings.container_processes,
        services=settings.container_services,
        ready_seconds=settings.service_ready_seconds,
        v1_trust=v1_trust,
    )


def _vm_rules(settings: OrchestratorSettings, v1_trust: frozenset[Source]) -> VmRules:
    return VmRules(
        images=read_vm_images(settings.vm_images),
        network=NetworkAccess(settings.vm_network),
        memory_bytes=settings.vm_memory_mib * MIB,
        cpus=settings.vm_cpus,
        start_seconds=settings.vm_start_seconds,
        artifact_bytes=settings.artifact_max_mib * MIB,
        v1_trust=v1_trust,
    )
