"""The environment that the demo gives the services."""

from pathlib import Path

from solstice_cli.demo.stop_actions import environment_of_up


def test_settings_of_real_services_stay_away_and_all_else_is_handed_on() -> None:
    environ = {"HOME": "/home/ada", "AMQP_URL": "amqp://rabbitmq.example:5672/", "amqp_prefetch": "7"}
    given = environment_of_up(environ, Path("/folder/state"))
    assert "HOME" in given
    assert not {"AMQP_URL", "amqp_prefetch"} & given.keys()
    assert given["SOLSTICE_HOME"] == "/folder/state"


def test_busy_machine_does_not_keep_its_jobs_waiting() -> None:
    assert environment_of_up({"GOVERNOR": "load=0.1"}, Path("/folder/state"))["GOVERNOR"] == "off"
