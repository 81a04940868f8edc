"""The compose files match their documentation."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.postgresql_server import OLDEST

COMPOSE = Path(__file__).parents[2] / "compose"


@pytest.fixture(scope="module")
def rabbitmq() -> Any:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["rabbitmq"]


def test_image_is_rabbitmq_4_with_management(rabbitmq: Any) -> None:
    assert rabbitmq["image"] == "rabbitmq:4-management"


def test_both_ports_answer_on_this_machine_only(rabbitmq: Any) -> None:
    assert sorted(rabbitmq["ports"]) == ["127.0.0.1:15672:15672", "127.0.0.1:5672:5672"]


def test_data_survives_a_new_container(rabbitmq: Any) -> None:
    volumes = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["volumes"]
    (data,) = [volume for volume in rabbitmq["volumes"] if volume.endswith(":/var/lib/rabbitmq")]
    assert data.partition(":")[0] in volumes
    assert rabbitmq["hostname"], "a node finds its data by its name"


def test_every_mounted_file_is_there(rabbitmq: Any) -> None:
    mounted = [volume.partition(":")[0] for volume in rabbitmq["volumes"] if volume.startswith("./")]
    assert {(COMPOSE / path).is_file() for path in mounted} == {True}


def test_health_is_checked(rabbitmq: Any) -> None:
    assert rabbitmq["healthcheck"]["test"][:2] == ["CMD", "rabbitmq-diagnostics"]


def test_management_page_is_enabled() -> None:
    plugins = (COMPOSE / "enabled_plugins").read_text()
    assert plugins.startswith("[")
    assert plugins.rstrip().endswith("].")
    assert "rabbitmq_management" in plugins


def test_every_line_of_the_broker_s_settings_has_its_form() -> None:
    lines = [line for line in (COMPOSE / "rabbitmq.conf").read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert all(" = " in line for line in lines)


class TestPostgreSQL:
    @pytest.fixture
    def overlay(self) -> Any:
        return yaml.safe_load((COMPOSE / "postgresql.yaml").read_text())

    @pytest.fixture
    def service(self, overlay: Any) -> Any:
        return overlay["services"]["postgresql"]

    def test_it_adds_to_the_compose_file_and_changes_nothing_there(self, overlay: Any) -> None:
        compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
        for part, added in overlay.items():
            assert not added.keys() & compose[part].keys()

    def test_image_is_a_version_that_we_promise_to_work_on(self, service: Any) -> None:
        name, _, version = service["image"].partition(":")
        assert name == "postgres"
        assert int(version) >= OLDEST

    def test_its_port_answers_on_this_machine_only(self, service: Any) -> None:
        assert service["ports"] == ["127.0.0.1:5432:5432"]

    def test_data_survives_a_new_container(self, overlay: Any, service: Any) -> None:
        # Up to version 17 that is the directory of the data; 18 keeps them one level deeper.
        assert service["volumes"] == ["postgresql-data:/var/lib/postgresql/data"]
        assert "postgresql-data" in overlay["volumes"]

    def test_the_address_it_names_is_its_own(self, service: Any) -> None:
        text = (COMPOSE / "postgresql.yaml").read_text()
        (address,) = re.findall(r"DATABASE_URL=(\S+)", text)
        names = [service["environment"][f"POSTGRES_{what}"] for what in ("USER", "PASSWORD", "DB")]
        assert address == "postgresql://{}:{}@127.0.0.1:5432/{}".format(*names)

    def test_health_is_asked_over_the_network(self, service: Any) -> None:
        assert service["healthcheck"]["test"][:3] == ["CMD", "pg_isready", "--host=127.0.0.1"]
