"""What a job tries in its container, to leave it or to get more.

An attempt that cannot succeed shows nothing. As root of a privileged container with the networks and processes of a
machine, all did except three: to end process 1, which the kernel prevents, to trigger the kernel, where it has no
such key, and to write what is only beside a job.
"""

from collections.abc import Iterator

CONTROL = "write its own /tmp, as it may"
ATTEMPTS = {
    "be root": "test $(id -u) = 0",
    "have a capability": "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb):.*[1-9a-f]' /proc/self/status",
    "gain privileges": "grep 'NoNewPrivs:.*0' /proc/self/status",
    "do without seccomp": "grep 'Seccomp:.*[01]$' /proc/self/status",
    "write the root": "touch /x || touch /bin/x || touch /etc/x",
    "mount": "mkdir /tmp/m && mount -t tmpfs none /tmp/m",
    "mount in a namespace": "unshare -m mount -t tmpfs none /tmp",
    "make a device": "mknod /tmp/d b 8 0",
    "use a device of its own": "mknod /tmp/null c 1 3 && echo x > /tmp/null",
    "read a disk": "cat /dev/sda /dev/vda /dev/mem /dev/kmsg 2>/dev/null | head -c 1 | grep .",
    "write the kernel's settings": "read -r now < /proc/sys/kernel/randomize_va_space && echo $now > /proc/sys/kernel/randomize_va_space",
    "write the kernel's parameters": "read -r now < /sys/kernel/rcu_normal && echo $now > /sys/kernel/rcu_normal",
    "trigger the kernel": "echo h > /proc/sysrq-trigger",
    "write a control group": "mkdir /sys/fs/cgroup/x || mkdir /sys/fs/cgroup/memory/x || echo 1 > /sys/fs/cgroup/memory/tasks",
    "raise its memory": "echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo max > /sys/fs/cgroup/memory.max",
    "find a socket of the runtime": "ls -d /run/podman /run/docker.sock /run/systemd | grep .",
    "see processes of the machine": "test $(ls -d /proc/[0-9]* | wc -l) -gt 12",
    "see the orchestrator's variables": "grep -q planted /proc/[0-9]*/environ",
    "signal the runtime": "kill -0 $(grep -l -e conmon -e podman -e runc -e crun /proc/[0-9]*/comm | grep -o '[0-9]*')",
    "end the process that runs its steps": "kill -9 1; sleep 0.1; test ! -d /proc/1",
    "have an interface that leads out": "grep -l up /sys/class/net/*/operstate",
    "have a way out by IPv4": "test $(wc -l < /proc/net/route) -gt 1",
    "have a way out by IPv6": "grep -v ' lo$' /proc/net/ipv6_route",
    "reach the metadata address": "exec 3<>/dev/tcp/169.254.169.254/80",
    "reach a name server": "exec 3<>/dev/tcp/1.1.1.1/53",
    "change its own scripts": "echo x >> /run/solstice/001.sh || rm -f /run/solstice/001.sh",
    "write the pipes and facts of this side": "ls /run/solstice/../facts /workspace/../facts /workspace/../control | grep .",
    CONTROL: "echo x > /tmp/written && grep x /tmp/written",
    "set a bit that gives privileges": "chmod 4755 /bin/id",
}

EGRESS_ATTEMPTS = {
    "ask for the machine": "CONNECT 127.0.0.1:{port} HTTP/1.1",
    "ask for the machine by name": "CONNECT localhost:{port} HTTP/1.1",
    "ask for the machine in short": "CONNECT 127.1:{port} HTTP/1.1",
    "ask for the machine as a number": "CONNECT 2130706433:{port} HTTP/1.1",
    "ask for the machine in hexadecimal": "CONNECT 0x7f.1:{port} HTTP/1.1",
    "ask for the machine by no address": "CONNECT 0.0.0.0:{port} HTTP/1.1",
    "ask for the machine by IPv6": "CONNECT [::1]:{port} HTTP/1.1",
    "ask for the machine by a mapped address": "CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1",
    "ask for the machine without a tunnel": "GET http://127.0.0.1:{port}/ HTTP/1.1",
    "ask for the metadata address": "CONNECT 169.254.169.254:{port} HTTP/1.1",
    "ask for another port": "CONNECT localhost:22 HTTP/1.1",
    "name one host and mean another": "CONNECT pypi.org:443@127.0.0.1:{port} HTTP/1.1",
    "hide a second request in a field": "CONNECT a.invalid:{port} HTTP/1.1\\r\\nX: y\\nCONNECT localhost:{port} HTTP/1.1",
    "take the proxy for a server": "GET / HTTP/1.1\\r\\nHost: localhost:{port}",
}
"""What a job asks of a proxy that allows every host at `port`, where a server of the machine listens."""


def tried() -> Iterator[str]:
    """The scripts of steps, one for each attempt."""
    for number, command in enumerate(ATTEMPTS.values()):
        yield f"set +e; ( {command} ) >/dev/null 2>&1 && echo succeeded {number}; true"


def succeeded(text: str) -> list[str]:
    """The names of those that succeeded, by what the job wrote; CONTROL always does."""
    return [name for number, name in enumerate(ATTEMPTS) if f"succeeded {number}\n" in text]
