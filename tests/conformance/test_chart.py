"""The Helm chart as the real helm renders it: what it deploys, and what it refuses to."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.config import file
from gateway.config.changes import AT_START
from tests.chart import CONFIG, ROOT, Values, config_text, manifests, pod, refusal, render, run, run_helm, with_config

VALIDATE = ROOT / ".venv-helm/bin/kubernetes-validate"
OLDEST, NEWEST = "1.30", "1.37"
EVERYTHING: Values = {
    "config": CONFIG,
    "existingSecret": "llm-secrets",
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ssl/own/ca.pem"}],
    "volumes": [{"name": "ca", "configMap": {"name": "own-ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/own"}],
    "tolerations": [{"key": "gateway", "operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "affinity": {"nodeAffinity": {}},
    "imagePullSecrets": [{"name": "registry"}],
    "networkPolicy": {"tenantFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    "podAnnotations": {"example.com/a": "b"},
    "priorityClassName": "high",
}
BARE: Values = {
    "config": {**CONFIG, "limits": {"store": "memory"}},
    "replicaCount": 1,
    "serviceAccount": {"create": False},
    "podDisruptionBudget": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "topologySpread": [],
    "resources": {"limits": None, "requests": None},
}
# Two pools, of which one is found in another namespace; a third is listed.
FINDS_PODS: Values = with_config(
    models={name: {"pool": name} for name in ("here", "there", "listed")},
    pools={
        "here": {"discovery": {"kubernetes": {"service": "vllm", "port": 8000}}},
        "there": {"discovery": {"kubernetes": {"namespace": "engines", "selector": "app=vllm", "port": "http"}}},
        "listed": {"replicas": ["http://vllm:8000"], "discovery": {"dns": {"name": "vllm.engines.svc", "port": 8000}}},
    },
)
VARIANTS: dict[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "bare": BARE,
    "existing ConfigMap": {"existingConfigMap": "mine"},
    "replicas found": FINDS_PODS,
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Values:
    return VARIANTS[request.param]


def test_helm_lint_has_nothing_to_say(tmp_path: Path, variant: Values) -> None:
    done = run_helm(tmp_path, "lint --strict --quiet", variant)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_the_oldest_and_newest_kubernetes_accept_every_manifest(tmp_path: Path, variant: Values) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(render(tmp_path, variant))
    done = run(VALIDATE, "--strict", "-k", OLDEST, "-k", NEWEST, rendered)

    kinds = [document["kind"] for document in yaml.safe_load_all(rendered.read_text()) if document]
    known = [kind for kind in kinds if kind != "ServiceMonitor"]  # an operator's kind: Kubernetes has no schema of it
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" passed for resource ") == 2 * len(known)


def test_the_same_values_render_the_same_twice(tmp_path: Path, variant: Values) -> None:
    assert render(tmp_path, variant) == render(tmp_path, variant)


def test_what_a_running_gateway_takes_on_changes_nothing_of_the_pod_unless_that_is_asked_for(tmp_path: Path) -> None:
    changed = with_config(models={**CONFIG["models"], "another": {"pool": "llama"}})
    assert pod(tmp_path, changed) == pod(tmp_path, with_config())
    assert config_text(tmp_path, changed) != config_text(tmp_path, with_config())

    before, after = [pod(tmp_path, {**values, "restartOnConfigChange": True}) for values in (with_config(), changed)]
    assert after["metadata"]["annotations"] != before["metadata"]["annotations"]
    assert after["spec"] == before["spec"]


TAKES_RESTART: dict[str, object] = {
    "server.listen": "0.0.0.0:8081",
    "server.workers": 2,
    "server.reuse_port": True,
    "admin.listen": "0.0.0.0:9091",
    "limits.store": "redis://:${REDIS_PASSWORD}@other:6379/0",
    "limits.store_timeout": "200ms",
    "limits.journal": "/var/lib/gateway",
    "limits.events": {"stream": "tenant"},
    "limits.lease": "20s",
    "limits.ledger_retention": "30d",
}


def test_what_a_running_gateway_cannot_take_on_replaces_the_pods(tmp_path: Path) -> None:
    assert set(TAKES_RESTART) == set(AT_START)
    base = with_config(limits={**CONFIG["limits"], "expected_processes": 2})
    before = pod(tmp_path, base)["metadata"]["annotations"]
    for path, value in TAKES_RESTART.items():
        name, key = path.split(".")
        changed = copy.deepcopy(base)
        changed["config"].setdefault(name, {})[key] = value
        assert pod(tmp_path, changed)["metadata"]["annotations"] != before, path
    pools = copy.deepcopy(base)
    pools["config"]["pools"]["llama"]["api_key"] = "${ANOTHER_KEY}"  # which the process has only from its start
    assert pod(tmp_path, pools)["metadata"]["annotations"] != before


def test_the_config_is_mounted_as_a_directory_in_which_a_new_version_arrives(tmp_path: Path) -> None:
    mounts = pod(tmp_path, {})["spec"]["containers"][0]["volumeMounts"]
    [mount] = [one for one in mounts if one["name"] == "config"]
    assert mount == {"name": "config", "mountPath": "/etc/gateway", "readOnly": True}  # with a subPath it never would


def test_the_gateway_loads_the_rendered_config(tmp_path: Path) -> None:
    environment = {"LLAMA_KEY": "sk-llama", "REDIS_PASSWORD": "hunter2"}
    example = file.parse(config_text(tmp_path, {}), environment=environment)
    own = file.parse(config_text(tmp_path, EVERYTHING), environment=environment)

    assert (example.server.listen.port, example.admin.listen.host) == (8080, "0.0.0.0")
    assert list(own.models) == ["llama"]
    assert own.limits.store == "redis://:hunter2@redis:6379/0"


@pytest.mark.parametrize(
    ("values", "processes"),
    [
        ({"replicaCount": 3}, 3),
        ({"autoscaling": {"enabled": True, "maxReplicas": 12}}, 12),
        ({"config": {**CONFIG, "limits": {"store": "redis://redis/0", "expected_processes": 7}}}, 7),
        ({"replicaCount": 3, "config": {**CONFIG, "server": {"workers": 4}}}, 3),
    ],
)
def test_a_pod_that_limits_alone_takes_its_share_of_all_pods(tmp_path: Path, values: Values, processes: int) -> None:
    loaded = json.loads(config_text(tmp_path, values))

    assert loaded["limits"]["expected_processes"] == processes


def test_large_integers_and_odd_strings_reach_the_gateway_as_they_were_written(tmp_path: Path) -> None:
    ten_million = 10_000_000
    names = ["4e2", "on", "1.10", "null", "12:30:45", "a.b/c", "0x1F", "é<&>"]
    rule = {"name": "tokens", "per": ["key"], "tokens": ten_million, "window": "month"}
    sections = {
        "limits": {**CONFIG["limits"], "plans": {"on": [rule]}, "expected_processes": ten_million},
        "models": {name: {"pool": "1e6", "default_output_tokens": ten_million, "created": 0} for name in names},
        "pools": {"1e6": {"replicas": ["http://[fd00::1]:8000"]}},
        "metrics": {"max_tenants": ten_million},
        "server": {"listen": "[::]:8080", "max_body": "10000000B"},
    }
    text = config_text(tmp_path, with_config(**sections))
    loaded = file.parse(text, environment={"REDIS_PASSWORD": ""})

    assert not re.search(r"[0-9]e\+", text)
    assert sorted(loaded.models) == sorted(names)
    assert {model.default_output_tokens for model in loaded.models.values()} == {ten_million}
    assert loaded.limits.plans["on"][0].tokens == ten_million
    assert (loaded.server.listen.host, loaded.server.max_body) == ("::", ten_million)
    assert loaded.metrics.max_tenants == loaded.limits.expected_processes == ten_million


@pytest.mark.parametrize(
    ("grace", "pause", "drain", "accepted"),
    [
        (45, 5, "30s", True),
        (43, 5, "30s", True),
        (42, 5, "30s", False),
        (45, 10, "30s", False),
        (102, 5, "1.5m", False),
        (103, 5, "1.5m", True),
        (3613, 5, "1h", True),
        (3612, 5, "1h", False),
        (14, 5, "1500ms", False),
        (15, 5, "1500ms", True),
        (10_000_000, 1, "30s", True),
    ],
)
def test_the_grace_period_must_outlast_pause_and_drain(
    tmp_path: Path, *, grace: int, pause: int, drain: str, accepted: bool
) -> None:
    values = {
        **with_config(server={"drain_timeout": drain}),
        "terminationGracePeriodSeconds": grace,
        "preStopSeconds": pause,
    }
    if accepted:
        spec = pod(tmp_path, values)["spec"]
        assert spec["terminationGracePeriodSeconds"] == grace
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": pause}}}
    else:
        assert f"terminationGracePeriodSeconds: {grace} would cut streams off: expected more than" in refusal(
            tmp_path, values
        )


def test_the_grace_period_must_outlast_the_delay_before_the_drain_too(tmp_path: Path) -> None:
    values = {**with_config(server={"drain_delay": "5s"}), "terminationGracePeriodSeconds": 45}
    assert "config.server.drain_delay (5) + drain_timeout (30) + 7" in refusal(tmp_path, values)
    assert pod(tmp_path, values | {"terminationGracePeriodSeconds": 48})


def test_the_pod_is_hardened_and_probed_on_the_operator_port(tmp_path: Path) -> None:
    found = manifests(tmp_path, {})
    spec = found["Deployment"]["spec"]["template"]["spec"]
    container = spec["containers"][0]

    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["ServiceAccount"]["automountServiceAccountToken"] is spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False  # Kubernetes would set GATEWAY_* variables of its own
    assert "command" not in container  # the image's entrypoint is PID 1, and no shell
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert probes == {
        "startupProbe": {"path": "/livez", "port": "admin"},
        "readinessProbe": {"path": "/readyz", "port": "admin"},
        "livenessProbe": {"path": "/livez", "port": "admin"},
    }


def test_who_finds_pods_may_watch_endpoint_slices_where_they_are_and_nothing_else(tmp_path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(render(tmp_path, FINDS_PODS)) if document]
    roles = [one for one in documents if one["kind"] == "Role"]
    bindings = [one for one in documents if one["kind"] == "RoleBinding"]

    assert [one["metadata"]["namespace"] for one in roles] == ["default", "engines"]
    assert [one["metadata"]["namespace"] for one in bindings] == ["default", "engines"]
    for role in roles:
        assert role["rules"] == [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        ]
    account = next(one for one in documents if one["kind"] == "ServiceAccount")["metadata"]["name"]
    for binding in bindings:
        assert binding["roleRef"]["name"] == roles[0]["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]
    spec = next(one for one in documents if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    named = render(tmp_path, {"existingConfigMap": "mine", "rbac": {"namespaces": ["engines"]}})
    assert named.count("kind: RoleBinding") == 1
    assert "kind: Role" not in render(tmp_path, {})


def test_ports_follow_the_config(tmp_path: Path) -> None:
    found = manifests(tmp_path, with_config(server={"listen": "[::]:8443"}, admin={"listen": ":9999"}))
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]

    assert [port["containerPort"] for port in container["ports"]] == [8443, 9999]
    assert [port["targetPort"] for port in found["Service"]["spec"]["ports"]] == ["http"]
    assert [port["port"] for port in found["admin"]["spec"]["ports"]] == [9999]


def test_tenants_cannot_reach_the_operator_port(tmp_path: Path) -> None:
    assert [port["name"] for port in manifests(tmp_path, {})["Service"]["spec"]["ports"]] == ["http"]

    rules = manifests(tmp_path, {})["NetworkPolicy"]["spec"]["ingress"]
    assert [(rule["ports"][0]["port"], rule.get("from")) for rule in rules] == [
        ("http", None),
        ("admin", [{"podSelector": {}}]),
    ]
    nobody = manifests(tmp_path, {"networkPolicy": {"adminFrom": []}})["NetworkPolicy"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in nobody] == ["http"]


def test_the_service_monitor_finds_the_operator_service(tmp_path: Path) -> None:
    found = manifests(tmp_path, EVERYTHING)
    wanted = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()

    assert wanted <= found["admin"]["metadata"]["labels"].items()
    assert not wanted <= found["Service"]["metadata"]["labels"].items()
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == found["admin"]["spec"]["ports"][0]["name"]


def test_secrets_are_references_only(tmp_path: Path) -> None:
    found = manifests(tmp_path, EVERYTHING)
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]

    assert "Secret" not in found
    assert container["envFrom"] == [{"secretRef": {"name": "llm-secrets"}}]
    assert json.loads(found["ConfigMap"]["data"]["config.yaml"])["pools"]["llama"]["api_key"] == "${LLAMA_KEY}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            with_config(pools={"llama": {"replicas": ["http://vllm:8000"], "api_key": "sk-hunter2"}}),
            "config.pools.llama.api_key: a ConfigMap is no place for a secret",
        ),
        (
            with_config(limits={"store": "redis://:hunter2@redis:6379/0"}),
            "config.limits.store: a ConfigMap is no place",
        ),
        (with_config(limits={"store": "redis://u:hunter2@redis"}), "config.limits.store: a ConfigMap is no place"),
        (with_config(limits={"store": "memory"}), "with memory each of 2 pods would grant every limit once"),
        (with_config(limits={}), "with memory each of 2 pods would grant every limit once"),
        (
            with_config(admin={"listen": "127.0.0.1:9090"}),
            "config.admin.listen: probes cannot reach a loopback address",
        ),
        (with_config(admin={"listen": "[::1]:9090"}), "config.admin.listen: probes cannot reach a loopback address"),
        (with_config(models={}), "config.models: missing"),
        (with_config(auth={}), "config.auth: missing"),
    ],
)
def test_what_would_leak_or_break_is_refused_with_its_path(tmp_path: Path, values: Values, message: str) -> None:
    said = refusal(tmp_path, values)

    assert message in said
    assert "hunter2" not in said
