"""Passwords from files: read again for each connection, on every broker that has passwords."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.broker import open_broker
from solstice_common.errors import ConfigurationError
from solstice_common.settings import BrokerSettings
from tests.broker_users import BrokerUser, broker_user
from tests.brokers import pytest_generate_tests
from tests.garbage import LOST_CONNECTIONS, garbage_of_this_test
from tests.polling import wait_until
from tests.traffic import connected, order

__all__ = ["broker_user", "garbage_of_this_test", "pytest_generate_tests"]

WITHOUT_BROKERS = ("embedded",)
pytestmark = LOST_CONNECTIONS


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "broker password"
    put(file, "first\n")
    return file


def put(file: Path, content: str | None, mode: int = 0o600) -> None:
    """Write a small file; None removes it."""
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
        file.chmod(mode)


async def test_rotated_password_is_used_without_a_restart(
    broker_user: BrokerUser, password_file: Path
) -> None:
    settings = BrokerSettings(amqp_url=broker_user.url, amqp_password_file=str(password_file))
    async with connected(settings.amqp_url) as broker:
        assert (await broker.publish([order(1)]))[0].confirmed
        broker_user.change_password("second")
        broker_user.end_connections()
        await wait_until(lambda: not broker.health.connected)
        put(password_file, "second\n")
        await broker.ready(30)
        assert (await broker.publish([order(2)]))[0].confirmed
        assert "second" not in broker.url + str(broker.health)


async def test_file_that_is_gone_is_named_and_awaited(broker_user: BrokerUser, password_file: Path) -> None:
    settings = BrokerSettings(amqp_url=broker_user.url, amqp_password_file=str(password_file))
    async with connected(settings.amqp_url) as broker:
        put(password_file, None)
        broker_user.change_password("second")
        broker_user.end_connections()
        await wait_until(lambda: str(password_file) in broker.health.detail)
        put(password_file, "second")
        await broker.ready(30)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "one line"), (b"two\nlines", "one line"), (b"\xff", "not UTF-8")],
    ids=["missing", "empty", "two lines", "no text"],
)
async def test_file_without_a_password_is_a_mistake_that_names_it(
    broker_user: BrokerUser, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    settings = BrokerSettings(amqp_url=broker_user.url, amqp_password_file=str(file))
    with pytest.raises(ConfigurationError, match=f"AMQP_PASSWORD_FILE: {file} .*{message}"):
        async with open_broker(settings.amqp_url, name="test"):
            pass


@pytest.mark.parametrize(("mode", "is_logged"), [(0o600, False), (0o640, False), (0o644, True)])
async def test_file_that_every_user_may_read_is_reported(
    broker_user: BrokerUser, password_file: Path, mode: int, is_logged: bool
) -> None:
    put(password_file, "first\n", mode)
    url = BrokerSettings(amqp_url=broker_user.url, amqp_password_file=str(password_file)).amqp_url
    with capture_logs() as logs:
        async with open_broker(url, name="test") as broker:
            await broker.ready(30)
    message = [line for line in logs if line["event"] == "file_mode.too_wide"]
    assert [line["path"] for line in message] == [str(password_file)] * is_logged


async def test_wrong_password_is_reported_with_the_host_that_refused_it(
    broker_user: BrokerUser, password_file: Path
) -> None:
    put(password_file, "stolen\n")
    settings = BrokerSettings(amqp_url=broker_user.url, amqp_password_file=str(password_file))
    host = broker_user.url.partition("@")[2].partition("/")[0]
    # A second host, which is another name of the same: so each is named with its reason.
    url = settings.amqp_url.replace(f"@{host}", f"@{host},localhost:{host.partition(':')[2]}")
    async with open_broker(url, name="test") as broker:
        await wait_until(lambda: f"{host}: " in broker.health.detail)
        detail = broker.health.detail.casefold()
        refusals = ("access_refused", "invalid username-password pair", "authorization violation")
        assert any(refusal in detail for refusal in refusals)
        assert "stolen" not in detail


def test_embedded_broker_has_no_password() -> None:
    with pytest.raises(ValueError, match="the embedded broker of AMQP_URL has no password"):
        BrokerSettings(amqp_url="sqlite:///broker.db", amqp_password_file="/run/password")
