"""The values of the chart: each does something, each is explained, and wrong types never reach a cluster."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config import Config
from tests.chart import CHART, ROOT, Values, at, config_text, refusal, render, run_helm, with_config

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DIGEST = "sha256:" + "0123456789abcdef" * 4
FINDS_PODS: Values = with_config(pools={"llama": {"discovery": {"kubernetes": {"service": "vllm"}}}})
# For every value: another one, and what else must be set for it to matter.
OTHERS: dict[str, tuple[object, Values]] = {
    "nameOverride": ("door", {}),
    "fullnameOverride": ("door", {}),
    "image.repository": ("registry.example.com/gateway", {}),
    "image.tag": ("9", {}),
    "image.digest": (DIGEST, {}),
    "image.pullPolicy": ("Always", {}),
    "imagePullSecrets": ([{"name": "registry"}], {}),
    "replicaCount": (5, {}),
    "autoscaling.enabled": (True, {}),
    "autoscaling.minReplicas": (3, {"autoscaling": {"enabled": True}}),
    "autoscaling.maxReplicas": (30, {"autoscaling": {"enabled": True}}),
    "autoscaling.targetCPUUtilizationPercentage": (50, {"autoscaling": {"enabled": True}}),
    "config.server.listen": ("0.0.0.0:8443", {}),
    "config.server.drain_delay": ("2s", {}),
    "config.server.drain_timeout": ("20s", {}),
    "config.admin.listen": ("0.0.0.0:9999", {}),
    "existingConfigMap": ("mine", {}),
    "restartOnConfigChange": (True, {}),
    "existingSecret": ("llm-secrets", {}),
    "env": ([{"name": "A", "value": "b"}], {}),
    "volumes": ([{"name": "ca", "configMap": {"name": "ca"}}], {}),
    "volumeMounts": ([{"name": "ca", "mountPath": "/ca"}], {}),
    "terminationGracePeriodSeconds": (60, {}),
    "preStopSeconds": (6, {}),
    "service.type": ("NodePort", {}),
    "service.port": (8080, {}),
    "service.annotations": ({"a": "b"}, {}),
    "serviceAccount.create": (False, {}),
    "serviceAccount.name": ("other", {}),
    "serviceAccount.annotations": ({"a": "b"}, {}),
    "rbac.create": (False, FINDS_PODS),
    "rbac.namespaces": (["inference"], {}),
    "podDisruptionBudget.enabled": (False, {}),
    "podDisruptionBudget.maxUnavailable": ("10%", {}),
    "networkPolicy.enabled": (False, {}),
    "networkPolicy.tenantFrom": ([{"podSelector": {}}], {}),
    "networkPolicy.adminFrom": ([{"namespaceSelector": {}}], {}),
    "serviceMonitor.enabled": (True, {}),
    "serviceMonitor.interval": ("1m", {"serviceMonitor": {"enabled": True}}),
    "serviceMonitor.labels": ({"release": "prometheus"}, {"serviceMonitor": {"enabled": True}}),
    "resources": ({"limits": {"memory": "2Gi"}}, {}),
    "topologySpread": (["rack"], {}),
    "podAnnotations": ({"a": "b"}, {}),
    "podLabels": ({"a": "b"}, {}),
    "nodeSelector": ({"a": "b"}, {}),
    "tolerations": ([{"operator": "Exists"}], {}),
    "affinity": ({"podAffinity": {}}, {}),
    "priorityClassName": ("high", {}),
}
WHOLE = {"resources"}  # Kubernetes' own structure: one value


def leaves(values: Values, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and path not in WHOLE:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_another_value_is_known_for_every_value() -> None:
    assert sorted(OTHERS) == sorted(leaves(VALUES))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Values], str]:
    """Give a function that renders values; most tests begin with the same."""
    folder, known = tmp_path_factory.mktemp("rendered"), dict[str, str]()

    def once(values: Values) -> str:
        key = json.dumps(values)
        if key not in known:
            known[key] = render(folder, values)
        return known[key]

    return once


@pytest.mark.parametrize("path", OTHERS)
def test_every_value_changes_what_is_rendered(rendered: Callable[[Values], str], path: str) -> None:
    other, context = OTHERS[path]

    assert rendered(context) != rendered(merged(context, at(path, other)))


def merged(below: Values, above: Values) -> Values:
    both = dict(below)
    for key, value in above.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, dict) else value
    return both


def test_the_deployment_guide_explains_every_value_and_no_other() -> None:
    guide = (ROOT / "docs/deploy.md").read_text()
    explained = re.findall(r"^\| `([A-Za-z_.]+)` \|", guide.partition("## Values")[2], flags=re.MULTILINE)

    assert sorted(explained) == sorted({*leaves(VALUES), "config"})


def test_chart_image_and_package_are_of_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert f'org.opencontainers.image.version="{version}"' in (ROOT / "Dockerfile").read_text()


def test_the_whole_commented_example_may_stand_in_the_values(tmp_path: Path) -> None:
    example = yaml.safe_load((ROOT / "config.yaml").read_text())
    example["admin"]["listen"] = "0.0.0.0:9090"  # a pod's probes do not come over loopback
    assert yaml.safe_load(config_text(tmp_path, {"config": example})) == example


def test_the_schema_names_only_sections_and_keys_that_the_gateway_has() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]

    for section, rules in schema.items():
        model = Config.model_fields[section].annotation
        assert set(rules.get("properties", {})) <= set(getattr(model, "model_fields", {})), section


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicaCount", "2"),
        ("replicaCount", True),
        ("replicas", 2),
        ("image.tags", "1"),
        ("service.port", "80"),
        ("serviceMonitor.interval", 15),
        ("networkPolicy.enabled", "yes"),
        ("podLabels", {"a": 1}),
        ("config.server.workers", "1"),
        ("config.server.drain_delay", 30),
        ("config.server.drain_timeout", 30),
        ("config.server.drain_timeout", None),
        ("config.server.max_body", 20971520),
        ("config.limits.lease", "30"),
        ("config.limits.plans", {"standard": [{"name": "a", "requests": "600", "window": "1m"}]}),
        ("config.models", {"llama": {"pool": "llama", "max_model_len": "131072"}}),
        ("config.pools", {"llama": {"replicas": []}}),
        ("config.pools", {"llama": {"replicas": ["http://vllm:8000"], "balance": "fastest"}}),
        ("config.pools", {"llama": {"replicas": ["http://vllm:8000"], "timeouts": {"idle": 60}}}),
        ("config.pools", {"llama": {}}),
        ("config.pools", {"llama": {"discovery": {"dns": {"name": "vllm", "port": "8000"}}}}),
        ("config.pools", {"llama": {"discovery": {"file": {}}}}),
        ("rbac.namespaces", "inference"),
        ("config.metrics.max_tenants", "200"),
    ],
)
def test_wrong_types_and_unknown_values_are_refused_by_the_schema(tmp_path: Path, path: str, value: object) -> None:
    values = at(path, value)

    assert "values don't meet the specifications of the schema" in refusal(tmp_path, values)
    assert run_helm(tmp_path, "lint", values).returncode != 0
