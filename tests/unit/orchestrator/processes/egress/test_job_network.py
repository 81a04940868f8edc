"""The control groups that a proxy shares with its job, and addresses of this machine."""

from ipaddress import ip_address
from pathlib import Path

from solstice_orchestrator.processes.egress import job_network
from solstice_orchestrator.processes.egress.job_network import is_of_machine


def test_groups_of_version_1_count_where_there_are_any() -> None:
    hybrid = ["5:memory:/a/b", "4:cpu,cpuacct:/a/b", "3:pids:/a/b", "1:name=systemd:/a", "0::/c"]
    found = {str(path) for path in job_network.limiting_groups(hybrid)}
    assert found == {"/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/cpu/a/b"}
    assert [*job_network.limiting_groups(["0::/a/b"])] == [Path("/sys/fs/cgroup/a/b")]


def test_addresses_of_this_machine() -> None:
    assert is_of_machine(ip_address("127.0.0.1"))
    assert is_of_machine(ip_address("127.8.9.10"))
    # For documentation: RFC 5737 and RFC 3849.
    assert not is_of_machine(ip_address("192.0.2.1"))
    assert not is_of_machine(ip_address("2001:db8::1"))
