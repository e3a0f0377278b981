"""What differs between two configs, what of it a running process cannot take on, and what a config was read from."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config, file
from gateway.config.changes import AT_START, changes, need_restart
from gateway.workers import held
from tests.config_keys import KEYS
from tests.documents import rows, section

BASE: dict[str, Any] = {
    "auth": {"development_key": "key.pem"},
    "limits": {"store": "redis://127.0.0.1", "events": {"stream": "shared"}},
    "models": {"m": {"pool": "p"}},
    "pools": {"p": {"replicas": ["http://127.0.0.1:1"]}},
}
OTHER: dict[str, Any] = {
    "server.listen": "127.0.0.1:1",
    "server.workers": 2,
    "server.reuse_port": True,
    "admin.listen": "127.0.0.1:2",
    "limits.store": "redis://127.0.0.2",
    "limits.store_timeout": "1s",
    "limits.lease": "40s",
    "limits.ledger_retention": "500d",
    "limits.journal": "journal",
    "limits.events": None,
    "limits.events.stream": "tenant",
    "limits.events.max_length": 2000,
}


def with_value(path: str, value: Any) -> Config:
    settings: dict[str, Any] = yaml.safe_load(yaml.safe_dump(BASE))
    *way, last = path.split(".")
    place = settings
    for step in way:
        place = place.setdefault(step, {})
    place[last] = value
    return Config.model_validate(settings)


@pytest.mark.parametrize("path", OTHER)
def test_what_is_taken_on_at_the_start_only_is_found_by_its_name(path: str) -> None:
    base = Config.model_validate(BASE)
    changed = changes(base, with_value(path, OTHER[path]))
    assert all(one.startswith(path) for one in changed)
    assert need_restart(changed) == [key for key in AT_START if path == key or path.startswith(f"{key}.")]
    assert need_restart(changes(base, base)) == []


def test_all_of_them_are_keys_and_documented_as_such() -> None:
    assert set(AT_START) <= set(KEYS)
    assert {path for path in KEYS if any(path == key or path.startswith(f"{key}.") for key in AT_START)} == set(OTHER)
    told = [word for row in rows(section("configuration", "What takes a restart")) for word in row[:1]]
    assert sorted(re.findall("`([^`]+)`", " ".join(told))) == sorted(AT_START)


def test_changes_are_paths_and_never_values() -> None:
    before = with_value("pools.p.api_key", "secret-1")
    after = with_value("pools.p.api_key", "secret-2").model_copy(update={"models": {}})
    assert changes(before, after) == ["models.m", "pools.p.api_key"]


def test_a_config_is_known_by_every_file_that_it_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, keys, path = tmp_path / "secret", tmp_path / "keys.yaml", tmp_path / "config.yaml"
    secret.write_text("s")
    keys.write_text("[]")
    monkeypatch.setenv("KEYS", str(keys))
    auth = {"development_key": "key.pem", "api_keys_file": "${KEYS}"}
    pools = {"p": {"replicas": ["http://127.0.0.1:1"], "api_key": f"Token ${{file:{secret}}}"}}
    path.write_text(yaml.safe_dump(BASE | {"auth": auth, "pools": pools}))
    loaded = file.read(path)
    assert list(loaded.files) == [path, secret, keys]
    assert file.digests(loaded.files) == loaded.files
    handed = held.read(held.written(held.of(loaded))).files
    assert file.read(path, known=handed) == loaded
    for one in (path, secret, keys):
        one.write_text(one.read_text() + "\n")
        assert [name for name, digest in file.digests(loaded.files).items() if digest != loaded.files[name]] == [one]
        loaded = file.read(path)
    for one in (secret, keys):
        one.write_text("neither")
    before, text = loaded.settings, path.read_text()
    path.write_text("no config")
    assert file.read(path, known=handed).settings == before
    path.write_text(text)
    secret.unlink()
    with pytest.raises(file.BadConfig, match="cannot be read") as bad:
        file.read(path)
    assert bad.value.files[secret] is None
    path.unlink()
    with pytest.raises(file.BadConfig, match="cannot be read") as gone:
        file.read(path)
    assert gone.value.files == {path: None}
