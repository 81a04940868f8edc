"""The files of the stack fit together, and set what the services know."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from solstice_common.settings import known_broker_url
from solstice_forge.decisions.sources import FORGES
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
STACK = COMPOSE / "stack"
SETTINGS: dict[str, type[BaseSettings]] = {
    "forge-integration": ForgeSettings,
    "orchestrator": OrchestratorSettings,
}
BROKERS = {"rabbitmq": "amqp", "rabbitmq-cluster": "amqp", "redis": "redis", "nats": "nats"}
STACKS = {**{broker: (broker,) for broker in BROKERS}, "tls": ("rabbitmq", "tls")}
"""By their names, the files beside compose.yaml."""
PINNED = re.compile(r":v?\d+(\.\d+)+[\w.-]*$")


@cache
def merged(name: str) -> Any:
    """The files of a stack, merged as compose does; variables have their defaults."""
    stack: dict[str, Any] = {}
    for file in ("compose", *STACKS[name]):
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (STACK / f"{file}.yaml").read_text())
        add(stack, yaml.safe_load(text.replace("$$", "$")))
    return stack


def add(stack: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge values by their names, and join lists."""
    for key, value in more.items():
        if isinstance(value, dict):
            add(stack.setdefault(key, {}), value)
        else:
            stack[key] = [*stack.get(key, ()), *value] if isinstance(value, list) else value


SERVICES = [
    pytest.param(name, service, id=f"{name}-{service}")
    for name in STACKS
    for service in merged(name)["services"]
]


@pytest.mark.parametrize(("name", "service"), SERVICES)
class TestService:
    def test_its_version_is_pinned(self, name: str, service: str) -> None:
        assert PINNED.search(merged(name)["services"][service]["image"])

    def test_it_has_no_rights_that_it_does_not_need(self, name: str, service: str) -> None:
        described = merged(name)["services"][service]
        assert described["read_only"] is True
        assert described["cap_drop"] == ["ALL"]
        assert described["security_opt"] == ["no-new-privileges:true"]
        # Ours have their user in the image; NATS' says why beside it.
        assert service in {*SETTINGS, "nats"} or described["user"] not in {"", "0", "root"}

    def test_its_health_is_checked(self, name: str, service: str) -> None:
        if service in SETTINGS:
            text = (COMPOSE / "Containerfile").read_text()
            stage = text.partition(f" AS {service}\n")[2].partition("\nFROM ")[0]
            assert "HEALTHCHECK" in stage
        else:
            assert merged(name)["services"][service]["healthcheck"]["test"][0] == "CMD"

    def test_its_ports_answer_on_this_machine_only(self, name: str, service: str) -> None:
        assert all(
            port.startswith("127.0.0.1:") for port in merged(name)["services"][service].get("ports", ())
        )

    def test_what_it_mounts_is_there(self, name: str, service: str) -> None:
        made = (STACK / "run").read_text()
        for volume in merged(name)["services"][service].get("volumes", ()):
            source, _, rest = volume.partition(":")
            if source.startswith("./secrets/"):
                assert f"$secrets/{Path(source).name}" in made
            elif source.startswith("."):
                assert (STACK / source).exists(), volume
                assert rest.endswith(":ro"), volume
            else:
                assert source in merged(name)["volumes"]

    def test_its_secrets_are_files_that_are_made(self, name: str, service: str) -> None:
        made = (STACK / "run").read_text()
        for secret in merged(name)["services"][service].get("secrets", ()):
            assert merged(name)["secrets"][secret] == {"file": f"./secrets/{secret}"}
            assert re.search(rf"[ /]{re.escape(secret)}[ \";]", made), secret


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("service", SETTINGS)
class TestSolsticeService:
    def test_variables_are_settings_of_the_service(self, name: str, service: str) -> None:
        names = {variable.lower() for variable in merged(name)["services"][service]["environment"]}
        assert names <= SETTINGS[service].model_fields.keys()

    def test_no_variable_is_a_secret(self, name: str, service: str) -> None:
        for variable, value in merged(name)["services"][service]["environment"].items():
            assert not variable.endswith(("_SECRET", "_TOKEN", "_KEYS", "PASSWORD"))
            assert not re.search(r"//[^/@]*:[^/@]*@", value), "a password in a URL"

    def test_its_broker_is_that_of_the_stack(self, name: str, service: str) -> None:
        url = merged(name)["services"][service]["environment"]["AMQP_URL"]
        assert known_broker_url(url) == known_broker_url(f"{BROKERS.get(name, 'amqp')}://")
        hosts = re.sub(r"^\w+://\w+@|[/?].*$", "", url).split(",")
        assert {*hosts} <= merged(name)["services"].keys()

    def test_it_is_given_the_time_to_stop(self, name: str, service: str) -> None:
        assert merged(name)["services"][service]["stop_grace_period"] in {"30s", "3m"}


def test_the_version_of_our_images_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file in (STACK / "compose.yaml", COMPOSE / "build-images"):
        assert {*re.findall(r"STACK_TAG:-([\w.]+)", file.read_text())} == {version}
    labels = (COMPOSE / "Containerfile").read_text()
    assert re.findall(r'image\.version="([\w.]+)"', labels) == [version]


def test_the_sources_are_forges_whose_secrets_are_mounted() -> None:
    sources = tomllib.loads((STACK / "sources.toml").read_text())["sources"]
    mounted = {
        f"file:/run/secrets/{secret}"
        for secret in merged("rabbitmq")["services"]["forge-integration"]["secrets"]
    }
    for source in sources.values():
        assert source["forge"] in FORGES
        assert {*source["secrets"]} <= mounted


def test_prometheus_has_the_jobs_that_the_alerts_know() -> None:
    jobs = {}
    for folder in (STACK, COMPOSE / "prometheus"):
        configured = yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"]
        jobs[folder.name] = {job["job_name"] for job in configured}
    assert jobs["prometheus"] < jobs["stack"]


def test_grafana_s_datasource_is_the_documented_one() -> None:
    ours = yaml.safe_load((STACK / "grafana-datasource.yaml").read_text())
    documented = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    documented["datasources"][0]["url"] = "http://prometheus:9090"
    assert ours == documented


@pytest.mark.parametrize("name", ["rabbitmq", "tls"])
def test_podman_compose_reads_the_files_in_the_same_way(name: str) -> None:
    files = [argument for each in ("compose", *STACKS[name]) for argument in ("-f", STACK / f"{each}.yaml")]
    program = Path(sys.executable).with_name("podman-compose")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STACK_")}
    done = subprocess.run(
        [program, "--dry-run", *files, "config"], env=environment, capture_output=True, text=True, check=True
    )
    expected = {key: value for key, value in merged(name).items() if not key.startswith("x-")}
    read = yaml.safe_load(done.stdout)
    assert read["services"] == expected["services"]
    assert read["secrets"] == expected["secrets"]


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        pytest.param([], {}, "say up, status, logs or down", id="no command"),
        pytest.param(["start"], {}, "say up, status, logs or down", id="other command"),
        pytest.param(["up"], {"STACK_BROKER": "kafka"}, "not 'kafka'", id="other broker"),
        pytest.param(["up"], {"STACK_BROKER": "tls"}, "not 'tls'", id="a file that is no broker"),
        pytest.param(
            ["up"], {"STACK_BROKER": "nats", "STACK_TLS": "1"}, "STACK_TLS is for", id="TLS elsewhere"
        ),
        pytest.param(["up"], {"STACK_ENGINE": "rkt"}, "docker or podman, not 'rkt'", id="other engine"),
    ],
)
def test_wrong_words_start_nothing(
    words: list[str], settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "STACK_ENGINE": "podman", **settings}
    done = subprocess.run(
        [STACK / "run", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
