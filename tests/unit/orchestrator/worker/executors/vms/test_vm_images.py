"""What an image of VMs must have."""

from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.worker.executors.vms.vm_images import read_vm_images


def made(folder: Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x")
    return f"linux={folder}"


def test_an_image_is_a_folder_with_files_of_known_names(tmp_path: Path) -> None:
    image = read_vm_images(made(tmp_path / "i", "vmlinuz", "initramfs"))["linux"]
    assert (image.disk, image.root) == (None, "/dev/vda")
    setting = made(tmp_path / "j", "vmlinuz", "initramfs", "disk.qcow2", "root")
    (tmp_path / "j/root").write_text("LABEL=cloudimg-rootfs\n")
    image = read_vm_images(setting)["linux"]
    assert image.disk == tmp_path / "j/disk.qcow2"
    assert (image.disk_format, image.root) == ("qcow2", "LABEL=cloudimg-rootfs")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [(("initramfs",), "needs a file .*/vmlinuz"), (("vmlinuz",), "needs a file .*/initramfs")],
)
def test_what_an_image_lacks_is_named(tmp_path: Path, names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        read_vm_images(made(tmp_path / "i", *names))


def test_a_disk_alone_boots_by_itself(tmp_path: Path) -> None:
    setting = made(tmp_path / "i", "disk.qcow2")
    image = read_vm_images(setting)["linux"]
    assert (image.kernel, image.initramfs, image.disk) == (None, None, tmp_path / "i/disk.qcow2")
    (tmp_path / "i/root").write_text("/dev/vda1")
    with pytest.raises(ConfigurationError, match=r"boots by itself .*: remove .*/root"):
        read_vm_images(setting)
    with pytest.raises(ConfigurationError, match=r"needs a file .*/vmlinuz"):
        read_vm_images(made(tmp_path / "j"))


def test_other_users_must_be_able_to_read_it(tmp_path: Path) -> None:
    setting = made(tmp_path / "i", "vmlinuz", "initramfs")
    (tmp_path / "i/vmlinuz").chmod(0)
    with pytest.raises(ConfigurationError, match="every user may read"):
        read_vm_images(setting)


def test_a_root_that_is_no_device_is_refused(tmp_path: Path) -> None:
    setting = made(tmp_path / "i", "vmlinuz", "initramfs", "disk.raw")
    (tmp_path / "i/root").write_text("/dev/vda1 init=/bin/sh")
    with pytest.raises(ConfigurationError, match="names no device"):
        read_vm_images(setting)
