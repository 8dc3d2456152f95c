"""What the chart makes of its values is what Kubernetes and KubeRay take, and what the server expects."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pippin.config.cluster import MACHINE
from pippin.config.flags import flags
from pippin.config.load import load
from pippin.config.settings import GivenFlag, Settings, Sources

ROOT = Path(__file__).parents[1]
CHART = ROOT / "packaging/chart"
KUBERNETES = "1.34"

Manifest = dict[str, Any]


def rendered(*values: str) -> dict[str, Manifest]:
    """The manifests by kind. `values` are `name=value` each, beside the secret that the chart asks for."""
    helm = os.environ.get("PIPPIN_HELM") or shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed; PIPPIN_HELM may name it")
    command = [helm, "template", "demo", str(CHART)]
    for value in ("apiKeySecret=keys", *values):
        command += ["--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


def closed(schema: Any) -> Any:
    """The schema, by which a field that it does not name is a fault: Kubernetes drops those without a word."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {name: closed(value) for name, value in schema.items()}
    open_to_all = own.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in own
    if "properties" in own and isinstance(own.get("type"), str) and not open_to_all:
        own["additionalProperties"] = False
    return own


def check(manifest: Manifest) -> None:
    """Raises what is wrong with a manifest."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    if manifest["kind"] != "RayCluster":
        kubernetes.validate(manifest, KUBERNETES, strict=True)
        return
    schema = closed(json.loads((ROOT / "tests/data/raycluster.json").read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(manifest, schema)
    for template in templates(manifest):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template.get("metadata", {}),
            "spec": template["spec"],
        }
        kubernetes.validate(pod, KUBERNETES, strict=True)


def templates(manifest: Manifest) -> list[Manifest]:
    """The templates of Pods, the server's first."""
    spec = manifest["spec"]
    if manifest["kind"] == "Deployment":
        return [spec["template"]]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def settings_of(words: list[str]) -> Settings:
    """What `pippin serve` makes of the words of a container."""
    given, rest = [], iter(words)
    known = flags()
    for word in rest:
        if word.startswith("--"):
            given.append(GivenFlag(word, None if known[word].takes == "switch" else next(rest)))
        else:
            given.append(GivenFlag("MODEL", word))
    return load(Sources(flags=tuple(given)), {})


VALUES: dict[str, tuple[str, ...]] = {
    "alone": (),
    "several": (
        "replicas=3",
        "stateSecret=state",
        "models.existingClaim=models",
        "service.type=LoadBalancer",
    ),
    "placed": ("nodeSelector.disk=fast", "tolerations[0].key=gpu", "env[0].name=HF_TOKEN", "env[0].value=x"),
    "cluster": ("ray.enabled=true",),
    "large": ("ray.enabled=true", "ray.replicas=3", "stateSecret=state", "models.existingClaim=models"),
}


@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_takes_what_the_chart_makes(name: str) -> None:
    manifests = rendered(*VALUES[name])
    assert set(manifests) == {"Service", "RayCluster" if "ray.enabled=true" in VALUES[name] else "Deployment"}
    for manifest in manifests.values():
        check(manifest)


@pytest.mark.parametrize("name", VALUES)
def test_the_server_takes_what_it_is_given_and_is_reached(name: str) -> None:
    manifests = rendered(*VALUES[name], "drainSeconds=60")
    server = templates(manifests.get("Deployment") or manifests["RayCluster"])[0]
    [container] = server["spec"]["containers"]
    words = container["args"][2:] if "RayCluster" in manifests else container["args"]
    settings = settings_of(words)
    assert (settings.server.host, settings.server.port, settings.server.drain_timeout) == (
        "0.0.0.0",
        8000,
        60.0,
    )
    assert settings.server.models[0].path == "mlx-community/SmolLM2-135M-Instruct"
    # What runs may end, after the moment in which the Service forgets the Pod.
    [_, pause] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert server["spec"]["terminationGracePeriodSeconds"] > 60 + int(pause) + 5
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    service = manifests["Service"]["spec"]
    assert service["selector"].items() <= server["metadata"]["labels"].items()
    assert [each["targetPort"] for each in service["ports"]] == [each["name"] for each in container["ports"]]
    assert container["ports"][0]["containerPort"] == settings.server.port
    assert server["spec"]["securityContext"]["runAsNonRoot"]


def test_a_cluster_has_one_server_and_machines_that_hold_a_replica_each() -> None:
    cluster = rendered("ray.enabled=true", "ray.replicas=2-5", "ray.workers.most=5")["RayCluster"]["spec"]
    options = settings_of(
        cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["args"][2:]
    ).server.model_defaults
    assert (options.cluster, options.replicas) == ("auto", "2-5")
    assert cluster["authOptions"] == {"mode": "token"}
    [group] = cluster["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 5)
    for params, count in ((cluster["headGroupSpec"]["rayStartParams"], 0), (group["rayStartParams"], 1)):
        assert json.loads(json.loads(params["resources"])) == {MACHINE: count}


def test_a_new_version_takes_over_when_it_is_ready_and_the_old_one_ends_what_runs() -> None:
    spec = rendered("replicas=3")["Deployment"]["spec"]
    assert spec["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    # KubeRay changes no Pods that run: there the next release is a cluster of its own, to which the Service turns.
    [blue, green] = [rendered("ray.enabled=true", f"service.release={name}") for name in ("", "green")]
    assert blue["Service"]["spec"]["selector"]["app.kubernetes.io/instance"] == "demo"
    assert green["Service"]["spec"]["selector"]["app.kubernetes.io/instance"] == "green"
    assert blue["RayCluster"] == green["RayCluster"]
    assert "upgradeStrategy" not in blue["RayCluster"]["spec"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("apiKeySecret=", "name the secret of the API keys"),
        ("ray.enabled=true,replicas=2", "there is one server"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rendered(value)


def test_a_misspelt_field_is_a_fault() -> None:
    cluster = rendered("ray.enabled=true")["RayCluster"]
    cluster["spec"]["authOption"] = {}
    with pytest.raises(jsonschema.ValidationError, match="authOption"):
        check(cluster)


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
