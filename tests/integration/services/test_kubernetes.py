"""The manifests for Kubernetes are what its API accepts, and set what the services know."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel, ConfigDict
from pydantic_settings import BaseSettings
from referencing import Registry
from referencing.jsonschema import DRAFT7

from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings
from tests.servers.pinned_wheels import pinned_wheels

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "compose" / "kubernetes"
PINNED = ROOT / "tests" / "servers" / "requirements-kubernetes.txt"
OLDEST, NEWEST = "v1.30.0", "v1.37.0"
WORKLOADS: dict[str, type[BaseSettings]] = {
    "forge-integration": ForgeSettings,
    "pages": OrchestratorSettings,
    "linux": OrchestratorSettings,
}


class Strict(BaseModel):
    """A part of an object whose unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Reference(Strict):
    name: str


class MetricsApi(Strict):
    """What KEDA's scaler `metrics-api` is told (keda.sh/docs/latest/scalers/metrics-api)."""

    url: str
    valueLocation: str  # noqa: N815  KEDA's name
    targetValue: str  # noqa: N815
    authMode: str  # noqa: N815


class Trigger(Strict):
    type: str
    metadata: MetricsApi
    authenticationRef: Reference  # noqa: N815


class ScaledObject(Strict):
    """The fields that we set of keda.sh/docs/latest/reference/scaledobject-spec."""

    scaleTargetRef: Reference  # noqa: N815
    minReplicaCount: int  # noqa: N815
    maxReplicaCount: int  # noqa: N815
    pollingInterval: int  # noqa: N815
    cooldownPeriod: int  # noqa: N815
    triggers: list[Trigger]


@cache
def built(name: str) -> list[Any]:
    """The objects that `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        # No package of Debian has a kustomize that knows patches.
        pytest.skip("not asked for: there is no kubectl on this machine to build the manifests")
    done = subprocess.run(
        ["kubectl", "kustomize", MANIFESTS / name], capture_output=True, text=True, check=True
    )
    assert done.stderr == "", "a field is deprecated"
    return [*yaml.safe_load_all(done.stdout)]


def objects(name: str, kind: str) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in built(name) if each["kind"] == kind}


@cache
def schemas(version: str) -> tuple[Path, "Registry[Any]"]:
    """The API's schemas, which refuse unknown fields."""
    package = pinned_wheels("kubernetes-schemas", PINNED) / "kubernetes_validate"
    folder = package / "kubernetes-json-schema" / f"{version}-local-strict"
    definitions = DRAFT7.create_resource(json.loads((folder / "_definitions.json").read_text()))
    return folder, Registry().with_resource("_definitions.json", definitions)


def mistakes(document: Any, version: str) -> list[str]:
    folder, registry = schemas(version)
    group, _, api = document["apiVersion"].rpartition("/")
    parts = (document["kind"], *([group.partition(".")[0]] if group else []), api)
    schema = json.loads((folder / f"{'-'.join(parts).lower()}.json").read_text())
    found = Draft7Validator(schema, registry=registry).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", ["base", "keda"])
def test_the_api_knows_every_field(name: str, version: str) -> None:
    for document in built(name):
        if not document["apiVersion"].startswith("keda.sh/"):
            assert mistakes(document, version) == [], document["metadata"]["name"]


def test_a_mistake_is_found() -> None:
    document = json.loads(json.dumps(objects("base", "Deployment")["linux"]))
    document["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True
    document["spec"]["replicas"] = "1"
    assert len(mistakes(document, NEWEST)) == 2


def test_keda_scales_what_is_there() -> None:
    (scaled,) = objects("keda", "ScaledObject").values()
    spec = ScaledObject.model_validate(scaled["spec"])
    target = objects("keda", "Deployment")[spec.scaleTargetRef.name]
    assert "replicas" not in target["spec"], "KEDA owns the number"
    (trigger,) = spec.triggers
    assert trigger.authenticationRef.name in objects("keda", "TriggerAuthentication")
    settings = objects("base", "ConfigMap")["solstice"]["data"]
    assert trigger.metadata.url.startswith(settings["PUBLIC_URL"]), "another name would be answered with 421"
    assert variables("linux")["CAPACITY_MAP"] == f"linux={trigger.metadata.targetValue}"


def container(workload: str) -> Any:
    (described,) = objects("base", "Deployment")[workload]["spec"]["template"]["spec"]["containers"]
    return described


def variables(workload: str) -> dict[str, str]:
    shared = objects("base", "ConfigMap")["solstice"]["data"]
    return {**shared, **{each["name"]: each.get("value", "") for each in container(workload)["env"]}}


@pytest.mark.parametrize("workload", WORKLOADS)
class TestWorkload:
    def test_variables_are_settings_of_the_service(self, workload: str) -> None:
        assert {name.lower() for name in variables(workload)} <= WORKLOADS[workload].model_fields.keys()

    def test_its_secrets_are_files(self, workload: str) -> None:
        pod = objects("base", "Deployment")[workload]["spec"]["template"]["spec"]
        mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert mounted == {"solstice"}
        assert "Secret" not in {document["kind"] for document in built("base")}
        assert not any("secretKeyRef" in json.dumps(each) for each in container(workload)["env"])

    def test_its_pods_are_allowed_where_policies_are_restricted(self, workload: str) -> None:
        # kubernetes.io/docs/concepts/security/pod-security-standards
        pod = objects("base", "Deployment")[workload]["spec"]["template"]["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert container(workload)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False

    def test_jobs_end_before_the_pod_is_killed(self, workload: str) -> None:
        pod = objects("base", "Deployment")[workload]["spec"]["template"]["spec"]
        needed = variables(workload).get("DRAIN_SECONDS", "0")
        assert pod["terminationGracePeriodSeconds"] >= int(needed) + 30
