"""Start one VM with KVM, which proves that it can be used."""

import asyncio
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.processes import vm_host
from solstice_orchestrator.processes.children import child
from solstice_orchestrator.worker.executors.vms.enclosures import Enclosure
from solstice_orchestrator.worker.executors.vms.vm_directory import KVM, MARK, PATH, make_vm_directory
from solstice_orchestrator.worker.executors.vms.vm_facts import VmFacts, last_words, read_vm_facts
from solstice_orchestrator.worker.executors.vms.vm_images import VmImage
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmPlan

TRIAL: Final = "trial-0"
"""Named as an attempt."""
TRIAL_SECONDS: Final = 20.0
CLOUD_TRIAL_SECONDS: Final = 60.0
"""The same where every image boots by itself, with all that its init system starts."""
TRIAL_BYTES: Final = 512 * MIB
NOTHING_NOTED: Final = VmFacts(starting=True)
NO_GROUPS: Final[Mapping[str, Path]] = MappingProxyType({})


async def problem_of_kvm(images: Collection[VmImage], enclosure: Enclosure) -> str:
    """Start a VM with KVM; return why it was not ready, or nothing.

    A `/dev/kvm` that opens proves nothing: it may hang before the first instruction.
    """
    if not KVM.exists():
        return f"there is no {KVM}"
    # One that boots fast.
    image = next((each for each in images if each.kernel), next(iter(images)))
    plan = VmPlan(label="", image=image, has_network=False, memory_bytes=TRIAL_BYTES, cpus=1)
    with tempfile.TemporaryDirectory(prefix="solstice-vm-") as folder:
        root = Path(folder) / TRIAL
        root.mkdir()
        directory = make_vm_directory(
            root,
            plan,
            "kvm",
            replace(enclosure, parents=NO_GROUPS),
            directories={},
            seconds=TRIAL_SECONDS if image.kernel else CLOUD_TRIAL_SECONDS,
        )
        command = (sys.executable, "-I", "-S", vm_host.__file__, str(directory), "trial")
        async with child(command, Path("/"), {"PATH": PATH, MARK: f"{folder}/"}, b"") as trial:
            await asyncio.gather(trial.stdout.read(), trial.stderr.read())
            await trial.wait()
        noted = directory / "facts"
        facts = read_vm_facts(noted.read_text()) if noted.exists() else NOTHING_NOTED
    if facts.unready or facts.starting:
        return f"no VM starts with KVM: {facts.unready or 'its trial was killed'}{last_words(facts)}"
    return ""
