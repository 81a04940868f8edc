"""The compose file offers what the documentation says of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

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
