"""Decide what an untrusted job and its proxy get to know. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts
from solstice_orchestrator.processes.egress.egress_facts import ADDRESS, PORT, EgressResult
from solstice_orchestrator.worker.executors.containers.container_plan import USERS, ContainerPlan, user_of

URL: Final = f"http://{ADDRESS}:{PORT}"


def egress_file(
    allowed: AllowedHosts, attempt: str, command: Sequence[str], *, is_root: bool
) -> dict[str, Any]:
    """Return what `egress_proxy.py` and `container_step.py` read about the proxy of a job.

    Started by root, the proxy becomes a user of its own, whom neither the machine nor another job has.
    """
    return {
        "command": list(command),
        "hosts": [str(host) for host in allowed.hosts],
        "networks": [str(network) for network in allowed.networks],
        "bytes": allowed.most_bytes,
        "user": user_of(attempt) + USERS if is_root else None,
    }


def egress_variables(plan: ContainerPlan) -> Mapping[str, str]:
    """Return the variables by which programs of a job find its proxy.

    There are none for a job without one.
    """
    if plan.egress is None:
        return {}
    here = ",".join(("localhost", "127.0.0.1", "::1", *(service.spec.name for service in plan.services)))
    values = {"http_proxy": URL, "https_proxy": URL, "no_proxy": here}
    return {**values, **{name.upper(): value for name, value in values.items()}}


def egress_notice(plan: ContainerPlan) -> Sequence[str]:
    """Return what the job's log says about its network."""
    if plan.egress is None:
        return ()
    return (f"network: the hosts that UNTRUSTED_EGRESS allows, through the proxy {URL}",)


def read_counts(text: str) -> tuple[tuple[str, int], ...]:
    """Return how many requests had each result; nothing where the proxy noted none."""
    try:
        counts = json.loads(text)
    except ValueError:
        return ()
    return tuple((result, counts[result]) for result in EgressResult if result in counts)
