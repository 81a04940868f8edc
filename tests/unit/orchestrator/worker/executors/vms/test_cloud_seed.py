"""What cloud-init reads in a VM, as other programs read it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from solstice_orchestrator.worker.executors.vms.cloud_seed import AGENT_PLACE, NETWORK, cloud_seed
from solstice_orchestrator.worker.executors.vms.fat_volume import fat_volume
from solstice_orchestrator.worker.executors.vms.vm_directory import AGENT
from tests.servers.apt import apt_can_install, apt_install

AGENT_TEXT = AGENT.read_text()


@pytest.fixture(autouse=True)
def _programs() -> None:
    # On Debian as root they are installed, so that CI runs these tests; elsewhere a machine may have none.
    if missing := [name for name in ("mcopy", "fsck.fat", "blkid") if shutil.which(name) is None]:
        if not apt_can_install():
            pytest.skip(f"not asked for: {', '.join(missing)} of Debian's mtools and dosfstools is missing")
        apt_install("mtools", "dosfstools")


def checked(volume: Path) -> dict[str, str]:
    """What `blkid` says, as cloud-init asks it, of a volume without an error."""
    subprocess.run(["fsck.fat", "-n", volume], check=True, capture_output=True)
    command = ["blkid", "-p", "-o", "export", str(volume)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in found.splitlines())


def read(volume: Path, name: str) -> bytes:
    return subprocess.run(["mcopy", "-i", volume, f"::{name}", "-"], capture_output=True, check=True).stdout


@pytest.mark.parametrize("has_network", [True, False])
def test_a_seed_names_the_attempt_and_starts_the_agent(tmp_path: Path, *, has_network: bool) -> None:
    volume = tmp_path / "seed"
    volume.write_bytes(cloud_seed("job-1-a", AGENT_TEXT, has_network=has_network))
    facts = checked(volume)
    assert (facts["TYPE"], facts["LABEL"]) == ("vfat", "CIDATA")
    assert json.loads(read(volume, "meta-data")) == {"instance-id": "job-1-a", "local-hostname": "ci"}
    head, _, user_data = read(volume, "user-data").decode().partition("\n")
    assert head == "#cloud-config"
    config = json.loads(user_data)
    assert config["write_files"] == [{"path": AGENT_PLACE, "permissions": "0755", "content": AGENT_TEXT}]
    assert config["locale"] == "false"
    assert config["runcmd"] == [["/bin/sh", AGENT_PLACE, "beside"]]
    assert "own=/run/solstice\n" in AGENT_TEXT
    network = json.loads(read(volume, "network-config"))
    assert network == (dict(NETWORK) if has_network else {"config": "disabled"})


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_001, 1_400_000])
def test_files_of_every_size_and_length_of_name_are_read_as_they_were_written(
    tmp_path: Path, size: int
) -> None:
    volume = tmp_path / "volume"
    files = {
        "a": b"first",
        "thirteen-long": bytes(index % 251 for index in range(size)),
        "a name of more than twice thirteen characters": b"x" * 513,
        "last": b"",
    }
    volume.write_bytes(fat_volume("label", files))
    assert checked(volume)["LABEL"] == "LABEL"
    for name, content in files.items():
        assert read(volume, name) == content, name


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        fat_volume("x", {"big": bytes(1_500_000)})
    with pytest.raises(ValueError, match="no room"):
        fat_volume("x", {f"file-{number}": b"" for number in range(120)})
