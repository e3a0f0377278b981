"""What `gateway limit` takes and shows, run in this process on a real store."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gateway import cli
from tests.ports import free_port
from tests.store_server import StoreServer

RULES = [
    {"name": "few", "per": ["key"], "requests": 1, "window": "day"},
    {"name": "day", "per": ["tenant"], "tokens": 1_000_000, "window": "day"},
]
BOT = {"tenant": "acme", "key": "bot", "plan": "tight", "sha256": "0" * 64}
FEW = ["--tenant", "acme", "--rule", "few"]


@pytest.fixture
def limit(tmp_path: Path) -> Callable[..., Result]:
    """Run `gateway limit` with the config's `store`."""

    def on(store: str, command: str, *arguments: str) -> Result:
        path = tmp_path / "config.yaml"
        sections = {
            "auth": {"development_key": "key.pem", "api_keys": [BOT]},
            "models": {"acme/tiny": {"pool": "main", "aliases": ["tiny"]}},
            "pools": {"main": {"replicas": ["http://127.0.0.1:1"]}},
            "limits": {"store": store, "plans": {"standard": RULES, "tight": RULES[:1]}},
        }
        path.write_text(yaml.safe_dump(sections))
        return CliRunner().invoke(cli.main, ["limit", command, "--config", str(path), *arguments])

    return on


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", *FEW, "--tokens", "5"], "--tokens: Rule few limits requests, not tokens."),
        (["set", *FEW, "--requests", "-1"], "--requests: requests must be an integer from 0 to"),
        (["set", "--tenant", "acme", "--rule", "fwe", "--requests", "1"], "--rule: No plan has a rule 'fwe'"),
        (["set", *FEW, "--requests", "5", "--for", "ever"], "--for: for must be a duration"),
        (["set", *FEW], "Nothing is changed"),
        (["plan", "--tenant", "acme", "--plan", "gone"], "--plan: There is no plan 'gone'; there are standard, tight."),
        (["remove", "--tenant", "acme"], "--rule, --plan: give one of them"),
        (["remove", *FEW, "--plan"], "--rule, --plan: give one of them"),
        (["show", "--tenant", "acme", "--model", "tiny"], "--model: give --tenant and --key too"),
        (["show", "--tenant", "acme", "--key", "k", "--model", "gone"], "--model: There is no model 'gone'"),
    ],
)
def test_a_wrong_option_is_named_and_ends_with_2(limit: Callable[..., Result], arguments: list[str], told: str) -> None:
    ended = limit(f"redis://127.0.0.1:{free_port()}/0", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(told)


def test_counts_in_memory_are_the_running_gateways_own(limit: Callable[..., Result]) -> None:
    ended = limit("memory", "show")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "limits.store" in ended.stderr
    assert "/admin/limits" in ended.stderr


def test_a_store_that_is_away_or_has_no_such_override_ends_with_1(
    limit: Callable[..., Result], store_server: StoreServer
) -> None:
    ended = limit(f"redis://:s3cret@127.0.0.1:{free_port()}/0", "show")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert "limits.store: it does not answer: " in ended.stderr
    assert "s3cret" not in ended.stderr
    ended = limit(store_server.url, "remove", *FEW)
    assert (ended.exit_code, ended.stderr) == (1, "There is no such override.\n")


def test_tables_show_what_was_set_and_what_applies(limit: Callable[..., Result], store_server: StoreServer) -> None:
    def shown(*arguments: str) -> list[str]:
        ended = limit(store_server.url, *arguments)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return ended.stdout.splitlines()

    shown("plan", "--tenant", "acme", "--plan", "standard")
    shown("set", "--tenant", "b\u00e4d\nname", "--rule", "few", "--no-shadow")
    header, *lines = shown("set", *FEW, "--key", "key-1", "--requests", "5", "--shadow")
    assert header.split() == ["tenant", "key", "rule", "change", "set_at", "until", "state"]
    (line,) = lines
    assert line.split()[:3] == ["acme", "key-1", "few"]
    assert "requests 5, shadow true" in line
    assert line.endswith("in force")
    assert [line.split()[:3] for line in shown("show")[1:]] == [
        ["acme", "(all)", "(plan)"],
        ["acme", "key-1", "few"],
        [r"b\xe4d\nname", "(all)", "few"],
    ]
    applied = shown("show", "--tenant", "acme", "--key", "key-1", "--model", "tiny")
    assert [line.split() for line in applied] == [
        ["plan", "rule", "limit", "used", "remaining", "measure", "window", "shadow", "source"],
        ["standard", "few", "5", "0", "5", "requests", "day", "true", "key_override"],
        ["standard", "day", "1000000", "0", "1000000", "tokens", "day", "false", "plan"],
    ]
    shown("remove", *FEW, "--key", "key-1")
    shown("remove", "--tenant", "acme", "--plan")
    of_an_api_key = ("show", "--tenant", "acme", "--key", "bot", "--model", "tiny")
    assert [line.split()[:2] for line in shown(*of_an_api_key)[1:]] == [["tight", "few"]]
    assert [line.split()[0] for line in shown(*of_an_api_key, "--claim", "standard")[1:]] == ["standard"] * 2
    assert len(shown("show")) == 2
