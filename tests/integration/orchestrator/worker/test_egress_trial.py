"""Whether a proxy of untrusted jobs can start is tried with a real one."""

import pytest

from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts
from solstice_orchestrator.processes.egress.egress_trial import egress_problem
from solstice_orchestrator.worker.executors.containers.egress_plan import egress_file
from tests.servers.podman import networks_can_be_made, podman_is_there

SECONDS = 60.0
"""A machine of tests may be busy."""


def test_a_proxy_starts_as_in_a_job_and_one_without_its_user_says_so() -> None:
    if not podman_is_there() or not networks_can_be_made():
        # Machines of CI give root these rights, other containers do not.
        pytest.skip("not asked for: this is not root with the right to networks, and the proxy needs one")
    plan = egress_file(AllowedHosts(hosts=parse_hosts("pypi.org")), "trial-0", (), is_root=True)
    assert egress_problem(plan, SECONDS) is None
    problem = egress_problem({**plan, "user": 2**40}, SECONDS)
    assert problem is not None
    assert "OverflowError" in problem
