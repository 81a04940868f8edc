"""Write what cloud-init reads in a VM whose image boots by itself. Pure.

Its data source NoCloud finds a volume with the label CIDATA, and needs no network. cloud-init writes our agent into
the VM's memory, and starts it as the last thing of its boot.

Source: docs.cloud-init.io/en/latest/reference/datasources/nocloud.html.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from solstice_orchestrator.worker.executors.vms.fat_volume import fat_volume

LABEL: Final = "CIDATA"
NETWORK: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "version": 2,
        "ethernets": {
            "vm": {
                # QEMU gives it to the first interface.
                "match": {"macaddress": "52:54:00:12:34:56"},
                "addresses": ["10.0.2.15/24"],
                "gateway4": "10.0.2.2",
                "nameservers": {"addresses": ["10.0.3.3"]},
            }
        },
    }
)
"""The same as the agent sets up where it is the init of a VM."""
NO_NETWORK: Final[Mapping[str, Any]] = MappingProxyType({"config": "disabled"})
"""Without it cloud-init would wait for an address."""
AGENT_PLACE: Final = "/run/solstice/agent"
"""As the agent itself names it."""


def cloud_seed(attempt: str, agent: str, *, has_network: bool) -> bytes:
    """Return the volume that starts the agent in the VM of this attempt."""
    user_data = {
        "write_files": [{"path": AGENT_PLACE, "permissions": "0755", "content": agent}],
        # One cheap key: a larger one takes seconds, and most jobs need none.
        "ssh_genkeytypes": ["ed25519"],
        # As text, which cloud-init takes for no. Otherwise it generates one where it can, and its service fails where not.
        "locale": "false",
        "runcmd": [["/bin/sh", AGENT_PLACE, "beside"]],
    }
    # A new instance for each attempt: the image may have been another one before.
    meta_data = {"instance-id": attempt, "local-hostname": "ci"}
    files = {
        "meta-data": _yaml(meta_data),
        "user-data": b"#cloud-config\n" + _yaml(user_data),
        "network-config": _yaml(NETWORK if has_network else NO_NETWORK),
    }
    return fat_volume(LABEL, files)


def _yaml(content: Mapping[str, Any]) -> bytes:
    """Return it as JSON, which is YAML too."""
    return json.dumps(dict(content)).encode() + b"\n"
