"""What the file of a password may hold, and how an unusable one is refused."""

from pathlib import Path

import pytest
import structlog

from solstice_common.addresses.password_file import LARGEST_BYTES, check_password_file, read_password
from solstice_common.errors import ConfigurationError
from solstice_common.telemetry.log_events import LogEvent


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"sesame", "sesame"),
        (b"sesame\n", "sesame"),
        (b"sesame\r\n", "sesame"),
        (b" se same \n", " se same "),
        ("schlüssel\n".encode(), "schlüssel"),
        (b"x" * LARGEST_BYTES, "x" * LARGEST_BYTES),
    ],
)
def test_one_line_is_the_password(tmp_path: Path, content: bytes, password: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    assert read_password(str(file)) == password


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not one line of at most 4096 bytes"),
        (b"\n", "not one line"),
        (b"planted\nword", "not one line"),
        (b"planted\n\n", "not one line"),
        (b"plan\0ted", "not one line"),
        (b"x" * LARGEST_BYTES + b"\n", "not one line"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_anything_else_is_refused_by_name_and_not_repeated(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=why) as raised:
        read_password(str(file))
    assert str(raised.value).startswith(f"AMQP_PASSWORD_FILE: {file} cannot be used")
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(("name", "why"), [("absent", "No such file or directory"), (".", "Is a directory")])
def test_what_cannot_be_read_is_named_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_password(str(tmp_path / name))


@pytest.mark.parametrize(
    ("mode", "is_reported"),
    [(0o600, False), (0o640, False), (0o644, True), (0o602, True), (0o601, True)],
)
def test_a_file_that_all_users_may_read_is_reported(tmp_path: Path, mode: int, is_reported: bool) -> None:
    file = tmp_path / "password"
    file.write_text("planted")
    file.chmod(mode)
    with structlog.testing.capture_logs() as lines:
        check_password_file(str(file))
    assert [line["event"] for line in lines] == [LogEvent.FILE_MODE_TOO_WIDE] * is_reported
    assert all(
        (line["path"], line["mode"], line["log_level"]) == (str(file), f"{mode:04o}", "warning")
        for line in lines
    )
    assert all(f"chmod o= {file}" in line["detail"] for line in lines)
