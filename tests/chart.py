"""Renders the chart with the real helm: values in, manifests or helm's refusal out."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm"
HELM = ROOT / ".venv-helm/bin/helm"

Values = Mapping[str, Any]
CONFIG: Values = {
    "auth": {"issuers": [{"issuer": "https://identity.example.com"}]},
    "limits": {"store": "redis://:${REDIS_PASSWORD}@redis:6379/0"},
    "models": {"llama": {"pool": "llama"}},
    "pools": {"llama": {"replicas": ["http://vllm:8000"], "api_key": "${LLAMA_KEY}"}},
}


def run_helm(tmp_path: Path, command: str, values: Values) -> subprocess.CompletedProcess[str]:
    assert HELM.exists(), f"{HELM} is missing: `make test` installs it"
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    return run(HELM, *command.split(), CHART, "--values", file)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(tmp_path: Path, values: Values) -> str:
    done = run_helm(tmp_path, "template gw", values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(tmp_path: Path, values: Values) -> str:
    done = run_helm(tmp_path, "template gw", values)
    assert done.returncode != 0
    return done.stderr


def manifests(tmp_path: Path, values: Values) -> dict[str, Any]:
    """Return what is rendered, by kind; the operator Service as `admin`."""
    documents = [document for document in yaml.safe_load_all(render(tmp_path, values)) if document]
    named = {"admin" if d["metadata"]["name"].endswith("-admin") else d["kind"]: d for d in documents}
    assert len(named) == len(documents)
    return named


def pod(tmp_path: Path, values: Values) -> Any:
    return manifests(tmp_path, values)["Deployment"]["spec"]["template"]


def config_text(tmp_path: Path, values: Values) -> str:
    return str(manifests(tmp_path, values)["ConfigMap"]["data"]["config.yaml"])


def with_config(**sections: Any) -> Values:
    return {"config": {**CONFIG, **sections}}


def at(path: str, value: object) -> Values:
    """Return values that differ from the default ones at the dotted `path` only."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value
