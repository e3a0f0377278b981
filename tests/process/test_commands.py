"""What the commands say to configs and arguments, good and bad: text and exit codes."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.cli import Later, main

GOOD: dict[str, dict[str, Any]] = {
    "auth": {"development_key": "development-key.pem"},
    "models": {"tiny": {"pool": "main"}},
    "pools": {"main": {"replicas": ["http://127.0.0.1:1"]}},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(GOOD | {"auth": {"development_key": str(tmp_path / "key.pem")}}))
    return path


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def test_the_help_says_of_every_command_what_that_says_of_itself() -> None:
    listed = " ".join(run("--help").stdout.split())
    for name in main.commands:
        said, _, _ = (Later(name).loaded().help or "").partition(". ")
        assert f" {name} {said.removesuffix('.')}. " in f"{listed} "


def test_check_says_what_a_good_config_amounts_to(config: Path) -> None:
    result = run("check", "--config", config)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{config}: good. 1 model, 1 pool with 1 replica, 0 issuers, ")
    assert result.stderr.startswith("Warning: auth.development_key ")


def test_check_warns_of_models_and_a_journal_that_are_not_there(config: Path) -> None:
    tree = yaml.safe_load(config.read_text())
    tree["auth"]["tenants"] = {"acme": {"models": ["gone"]}}
    tree["limits"] = {"store": "redis://a", "journal": str(config)}
    config.write_text(yaml.safe_dump(tree))
    warnings = run("check", "--config", config).stderr
    assert "Warning: auth.tenants.acme.models[0], 'gone', matches no model; " in warnings
    assert f"Warning: limits.journal, {config}, is no directory on this machine." in warnings
    tree["limits"]["journal"] = str(config.parent)
    config.write_text(yaml.safe_dump(tree))
    assert "limits.journal" not in run("check", "--config", config).stderr


def test_check_warns_of_api_keys_that_have_expired(config: Path) -> None:
    tree = yaml.safe_load(config.read_text())
    ends = {"past": "2020-01-31", "future": "2100-01-31", "never": None}
    keys = [{"key": key, "tenant": "acme", "sha256": f"{position}" * 64} for position, key in enumerate(ends)]
    tree["auth"]["api_keys"] = [{**key, "expires": ends[key["key"]]} for key in keys]
    (config.parent / "keys.yaml").write_text(yaml.safe_dump([keys[2] | {"sha256": "f" * 64, "expires": "2021-01-31"}]))
    tree["auth"]["api_keys_file"] = str(config.parent / "keys.yaml")
    config.write_text(yaml.safe_dump(tree))
    warnings = run("check", "--config", config).stderr
    assert "Warning: auth.api_keys[0], 'past', has expired and is refused; " in warnings
    assert "Warning: auth.api_keys_file[0], 'never', has expired and is refused; " in warnings
    assert warnings.count("has expired") == 2


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "several problems": (
        {"server": {"listen": "nowhere", "colour": "red"}, "requests": {"body_timeout": 5}},
        ["server.listen: ", "server.colour: ", "requests.body_timeout: "],
    ),
    "a replica without its scheme": (
        {"pools": {"main": {"replicas": ["10.0.0.1:8000"], "health": {"path": "health"}}}},
        ["pools.main.replicas[0].url: expected http(s)://host", "pools.main.health.path: expected a path from /"],
    ),
    "a pool that is not there": ({"models": {"tiny": {"pool": "other"}}}, ["models.tiny.pool: "]),
    "a variable that is not set": (
        {"pools": {"main": {"replicas": ["http://a"], "api_key": "${NO_SUCH_VARIABLE}"}}},
        ["pools.main.api_key: ${NO_SUCH_VARIABLE} is not set"],
    ),
    "a rule without a measure": (
        {"limits": {"plans": {"a": [{"name": "x", "window": "1m"}]}, "default_plan": "a"}},
        ["limits.plans.a[0]: "],
    ),
    "nobody may call": ({"auth": {}}, ["auth: "]),
}


@pytest.mark.parametrize("command", [["check"], ["serve"], ["token", "--tenant", "t", "--key", "k"]])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_config_is_refused_with_every_problem_and_its_place(
    tmp_path: Path, name: str, command: list[str]
) -> None:
    sections, places = BAD[name]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(GOOD | sections))
    result = run(*command, "--config", config)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert len(lines) == len(places)
    for place in places:
        assert [line for line in lines if line.startswith(f"{config}: {place}")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"[1]", "not a mapping"),
        (b"a: [", "is not YAML"),
        (b"\xff", "cannot be read"),
        (b"server: {}\nserver: {}\n", "stands twice"),
        (b"[" * 600 + b"]" * 600, "is not YAML"),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path: Path, text: bytes | None, says: str) -> None:
    config = tmp_path / "config.yaml"
    if text is not None:
        config.write_bytes(text)
    for command in ("check", "serve"):
        result = run(command, "--config", config)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"{config}: ")
        assert says in line


def test_a_token_needs_a_development_key(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    auth = {"issuers": [{"issuer": "https://idp.example"}]}
    config.write_text(yaml.safe_dump(GOOD | {"auth": auth}))
    result = run("token", "--config", config, "--tenant", "t", "--key", "k")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{config}: auth.development_key: is not set; ")
    assert run("check", "--config", config).stderr == ""


def test_a_development_key_that_cannot_be_used_is_told(config: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("not a key")
    result = run("token", "--config", config, "--tenant", "t", "--key", "k")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"auth.development_key: {tmp_path / 'key.pem'} ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["token"],
        ["token", "--tenant", "t"],
        ["token", "--tenant", "t", "--key", "k", "--ttl", "5"],
        ["engine"],
        ["engine", "--model", "m", "--port", "99999"],
        ["engine", "--model", "m", "--tokens-per-second", "0"],
        ["serve", "--no-such-option"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def test_the_config_is_the_one_named_else_the_environments_else_the_one_here(config: Path, tmp_path: Path) -> None:
    def first_word(*arguments: str, **environment: str) -> str:
        result = CliRunner().invoke(main, ["check", *arguments], env=environment)
        return result.output.split(":")[0]

    named = str(config)
    assert first_word("--config", named, GATEWAY_CONFIG="other.yaml") == named
    assert first_word(GATEWAY_CONFIG=named) == named
    assert first_word(GATEWAY_CONFIG="/no/such.yaml", GATEWAY_PORT="tcp://10.0.0.1:80") == "/no/such.yaml"


def test_status_says_who_does_not_answer(config: Path) -> None:
    tree = yaml.safe_load(config.read_text())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        threading.Thread(target=_answer_nonsense, args=(silent,)).start()
        ended = run("status", "--at", f"127.0.0.1:{port}")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr == f"127.0.0.1:{port}: what answers there is no operator listener of a gateway\n"
    config.write_text(yaml.safe_dump(tree | {"admin": {"listen": f"127.0.0.1:{port}"}}))
    ended = run("status", "--config", config)
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"127.0.0.1:{port}: no gateway answers there: ")
    config.write_text("colour: red")
    ended = run("status", "--config", config)
    assert (ended.exit_code, ended.stderr.splitlines()[-1].endswith("--at HOST:PORT")) == (2, True)
    ended = run("status", "--at", "127.0.0.1:http")
    assert (ended.exit_code, ended.stderr.startswith("--at: expected host:port")) == (2, True)


def _answer_nonsense(listening: socket.socket) -> None:
    with listening.accept()[0] as connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
