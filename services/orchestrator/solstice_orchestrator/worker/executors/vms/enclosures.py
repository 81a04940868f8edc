"""Find what can enclose QEMU on this machine, and enclose that of each attempt."""

import asyncio
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from solstice_orchestrator.processes import vm_enclosure
from solstice_orchestrator.processes.children import child
from solstice_orchestrator.processes.control_groups import own_group
from solstice_orchestrator.worker.executors.containers.container_groups import (
    ROOT,
    delegated_base,
    group_of,
    groups_left,
    remove_groups,
)
from solstice_orchestrator.worker.executors.vms.vm_limits import CONTROLLERS, VmLimits, limit_files

ROUTER: Final = (
    *("slirp4netns", "--configure", "--mtu=65520", "--cidr=10.0.3.0/24", "--disable-host-loopback"),
    *("--enable-sandbox", "--enable-seccomp"),
)
"""Its addresses differ from those of QEMU's own network. The agent knows the address of its name server, 10.0.3.3."""
TRIAL_LIMITS: Final = VmLimits(memory_bytes=64 * 1024 * 1024, cpus=1, tasks=64)
TRIAL_SECONDS: Final = 20.0
DETAIL_LENGTH: Final = 300
REMOVALS: Final = 100
PAUSE_SECONDS: Final = 0.02
_JOINS: Final = 'for each; do echo 0 >"$each/cgroup.procs" || exit 1; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """What QEMU is enclosed in on this machine, beside its own sandbox."""

    parents: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """The directories below which its control groups are made, by controller."""
    base: str = ""
    """The group that was delegated to us, for the sweep after a kill."""
    namespace: bool = False
    """Whether it has a network of its own."""
    lacks: tuple[str, ...] = ()
    """What it should have and does not, with the reasons."""

    @property
    def bounds(self) -> Sequence[str]:
        """What is bounded."""
        return [
            *(each for each in CONTROLLERS if each in self.parents),
            *(["network"] if self.namespace else []),
        ]

    def groups(self, workspaces: str, attempt: str) -> Mapping[str, Path]:
        """Return the groups of an attempt, by controller; version 2 has one for all."""
        name = group_of(workspaces, attempt).lstrip("/")
        return {controller: parent / name for controller, parent in self.parents.items()}

    def make(self, workspaces: str, attempt: str, limits: VmLimits) -> Mapping[str, Path]:
        """Make the groups of an attempt with their limits. Raises OSError."""
        groups = self.groups(workspaces, attempt)
        for controller, group in groups.items():
            group.mkdir(exist_ok=True)
            _limit(group, controller, limits)
        return groups

    def remove(self, workspaces: str, attempt: str) -> None:
        """Remove the groups of an attempt, once its processes have ended."""
        for _ in range(REMOVALS):
            remove_groups(workspaces, attempt, self.base)
            if not groups_left(workspaces, attempt, self.base):
                return
            time.sleep(PAUSE_SECONDS)

    def has_lacked_memory(self, workspaces: str, attempt: str) -> bool:
        """Return whether a process of an attempt was ended for lack of memory."""
        group = self.groups(workspaces, attempt).get("memory")
        if group is None:
            return False
        unified = (group / "cgroup.controllers").exists()
        events = group / ("memory.events" if unified else "memory.oom_control")
        return re.search(r"^oom_kill [1-9]", events.read_text(), re.MULTILINE) is not None

    def command(
        self,
        groups: Mapping[str, Path],
        user: int | None,
        extra_groups: Sequence[int],
        *,
        has_network: bool,
    ) -> Sequence[str]:
        """Return the command to which that of QEMU is appended."""
        words: dict[str, Any] = {
            "groups": sorted({str(group) for group in groups.values()}),
            "namespace": self.namespace,
            "router": ROUTER if has_network else (),
            "user": user,
            "extra_groups": extra_groups,
        }
        return (sys.executable, "-I", "-S", vm_enclosure.__file__, json.dumps(words))


async def find_enclosure(path: str, *, has_network: bool) -> Enclosure:
    """Try what this machine has.

    `path` is where programs are; with `has_network` a way out of the namespace is tried too.
    """
    parents, base, lacks = await asyncio.to_thread(_parents)
    usable = {}
    for controller, parent in parents.items():
        if problem := await _problem_of_group(controller, parent):
            lacks.append(f"{controller}: {problem}")
        else:
            usable[controller] = parent
    problem = await _problem_of_namespace(path, has_network=has_network)
    return Enclosure(
        parents=usable,
        base=base,
        namespace=not problem,
        lacks=(*lacks, *([f"network: {problem}"] if problem else [])),
    )


def _parents() -> tuple[dict[str, Path], str, list[str]]:
    """Return where each controller may limit groups, the delegated group, and what cannot."""
    if not (ROOT / "cgroup.controllers").exists():
        if os.geteuid() == 0:
            return {each: ROOT / each for each in CONTROLLERS}, "", []
        return {}, "", ["memory, cpu, pids: control groups of version 1 need root"]
    if os.geteuid() == 0:
        lacks = []
        for each in CONTROLLERS:
            try:
                (ROOT / "cgroup.subtree_control").write_text(f"+{each}")
            except OSError as error:
                lacks.append(f"{each}: {error.strerror}")
        given = (ROOT / "cgroup.subtree_control").read_text().split()
        return {each: ROOT for each in CONTROLLERS if each in given}, "", lacks
    group = own_group()
    try:
        if group is None:
            raise FileNotFoundError(0, "there is none")
        base = delegated_base(group)
    except OSError as error:
        reason = f"no control group belongs to this user (Delegate=yes of systemd): {error.strerror or error}"
        return {}, "", [f"memory, cpu, pids: {reason}"]
    return {each: ROOT / base.lstrip("/") for each in CONTROLLERS}, base, []


async def _problem_of_group(controller: str, parent: Path) -> str:
    """Return why no group below `parent` limits anything, or nothing."""
    group = parent / f"solstice.trial.{secrets.token_hex(4)}"
    try:
        await asyncio.to_thread(group.mkdir)
        try:
            await asyncio.to_thread(_limit, group, controller, TRIAL_LIMITS)
            return await _ran(["sh", "-c", _JOINS, "sh", str(group)], "/usr/sbin:/usr/bin:/sbin:/bin")
        finally:
            await asyncio.to_thread(group.rmdir)
    except OSError as error:
        return str(error)


async def _problem_of_namespace(path: str, *, has_network: bool) -> str:
    """Return why QEMU cannot have a network of its own, or nothing."""
    trial = Enclosure(namespace=True).command({}, None, (), has_network=has_network)
    return await _ran([*trial, "true"], path)


async def _ran(command: Sequence[str], path: str) -> str:
    """Run a command; return why it failed, or nothing."""
    try:
        async with asyncio.timeout(TRIAL_SECONDS), child(command, Path("/"), {"PATH": path}, b"") as trial:
            _, errors = await asyncio.gather(trial.stdout.read(), trial.stderr.read())
            code = await trial.wait()
    except TimeoutError:
        return f"it did not end within {TRIAL_SECONDS:g} s"
    words = "; ".join(errors.decode(errors="replace").strip().splitlines())[-DETAIL_LENGTH:]
    return "" if code == 0 else words or f"exit code {code}"


def _limit(group: Path, controller: str, limits: VmLimits) -> None:
    """Set a limit, and read it back. Raises OSError."""
    unified = (group / "cgroup.controllers").exists()
    for name, value, is_needed in limit_files(limits, controller, unified=unified):
        file = group / name
        try:
            file.write_text(value)
        except OSError:
            if is_needed:
                raise
            continue
        if (found := file.read_text().strip()) != value:
            raise OSError(f"{file} is {found}, not {value}")
