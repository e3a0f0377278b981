"""What config.yaml may say, and how a mistake in it is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Limits, cpus, file, units
from gateway.config.file import BadConfig
from gateway.config.unmatched import unmatched

GOOD: dict[str, Any] = {
    "auth": {"issuers": [{"issuer": "https://id.example.com"}]},
    "models": {"m": {"pool": "p"}},
    "pools": {"p": {"replicas": ["http://10.0.0.1:8000"]}},
}

ASKED: dict[str, Any] = {"issuer": "https://a", "exchange": {"url": "https://a/token"}}


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(BadConfig) as bad:
        file.parse(text, environment=environment)
    return bad.value.problems


def changed(path: str, value: Any) -> str:
    """Return GOOD as YAML with the value at `a.b.c` replaced."""
    tree = yaml.safe_load(yaml.safe_dump(GOOD))
    *parents, last = path.split(".")
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return str(yaml.safe_dump(tree))


def test_the_least_that_is_needed_has_safe_defaults() -> None:
    config = file.parse(yaml.safe_dump(GOOD))
    assert config.admin.listen.host == "127.0.0.1"
    assert [rule.name for rule in config.limits.plans[config.limits.fallback_plan]] == [
        "key-requests",
        "key-tokens",
        "key-concurrency",
        "tenant-month",
    ]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("server.lissten", ":80", "server.lissten: is not a key of this section"),
        ("server.listen", "80", "server.listen: expected host:port such as 0.0.0.0:8080, got '80'"),
        ("server.workers", 0, "server.workers: "),
        ("server.workers", 257, "server.workers: "),
        ("server.workers", "all", "server.workers: "),
        ("server.workers", 4, "limits.store: memory counts in one process, and server.workers makes 4"),
        ("server.max_body", 20, "server.max_body: expected a size such as 512KiB or 20MiB, got 20"),
        ("server.write_timeout", "0s", "server.write_timeout: "),
        ("server.body_budget", "19MiB", "server: body_budget: less than max_body"),
        ("server.drain_timeout", "30", "server.drain_timeout: expected a duration such as 500ms, 30s"),
        ("auth.issuers", [], "auth: needs at least one entry in issuers"),
        ("auth.issuers", [{"issuer": "uni-identity"}], "auth.issuers[0]: jwks: needed"),
        ("auth.issuers", [{"issuer": "https://a", "algorithms": ["HS256"]}], "auth.issuers[0].algorithms[0]: "),
        (
            "auth.issuers",
            [{"issuer": "https://a", "claims": {"tenant": "org_id |"}}],
            "auth.issuers[0].claims.tenant: not a JMESPath expression",
        ),
        (
            "auth.issuers",
            [{"issuer": "https://a", "claims": {"tenant": "nonsense(org_id)"}}],
            "auth.issuers[0].claims.tenant: not a JMESPath expression",
        ),
        ("auth.issuers", [{"issuer": "gateway-development", "jwks": "/k"}], "auth: issuers: 'gateway-development' is"),
        (
            "auth.issuers",
            [ASKED, ASKED | {"issuer": "https://b"}],
            "auth: issuers: encrypted tokens would go to 'https://a'",
        ),
        (
            "auth.issuers",
            [ASKED | {"exchange": {"url": "https://a/token", "issuers": ["https://b"]}}, {"issuer": "https://b"}],
            "auth: issuers: tokens of 'https://b' would go to 'https://b' and to 'https://a'",
        ),
        (
            "auth.issuers",
            [ASKED | {"introspection": {"url": "https://a/i"}}],
            "auth.issuers[0]: exchange, introspection: one of them at most",
        ),
        (
            "auth.issuers",
            [{"issuer": "a", "jwks": "/k", "introspection": {"url": "https://a/i"}}],
            "auth.issuers[0]: jwks, jwks_token: have no use with introspection",
        ),
        (
            "auth.issuers",
            [{"issuer": "a", "audience": "b", "introspection": {"url": "https://a/i", "answer": "userinfo"}}],
            "auth.issuers[0]: audience: UserInfo does not tell",
        ),
        (
            "auth.issuers",
            [{"issuer": "a", "introspection": {"url": "https://a/i", "answer": "userinfo", "client_id": "c"}}],
            "auth.issuers[0].introspection: client_id: UserInfo is asked with",
        ),
        (
            "auth.issuers",
            [ASKED | {"exchange": {"url": "https://a/token", "client_secret": "s"}}],
            "auth.issuers[0].exchange: client_id: needed with a client_secret",
        ),
        (
            "auth.issuers",
            [ASKED | {"exchange": {"url": "https://a/token", "project": "p"}}],
            "auth.issuers[0].exchange: organization: needed with a project",
        ),
        (
            "auth.issuers",
            [ASKED | {"exchange": {"url": "https://a/token", "audience": "gw"}}],
            "auth.issuers[0]: audience: must name what exchange.audience or exchange.resource asks for",
        ),
        (
            "auth.issuers",
            [ASKED | {"audience": ["x"], "exchange": {"url": "https://a/token", "resource": "https://gw"}}],
            "auth.issuers[0]: audience: must name what exchange.audience or exchange.resource asks for",
        ),
        (
            "auth.issuers",
            [ASKED | {"exchange": {"url": "https://user:pw@a/token"}}],
            "auth.issuers[0].exchange.url: expected an http(s) URL without user",
        ),
        *[
            ("auth.issuers", [{"issuer": "https://a", **entry}], f"auth.issuers[0].{says}")
            for entry, says in (
                (
                    {"require": {"ver": 2.0}},
                    'require.ver: 2.0 is a number; a version is text: write it in quotes, "2.0"',
                ),
                (
                    {"require": {"a": ["b"]}},
                    "require.a: expected the value of one claim: text, a whole number, true or",
                ),
                ({"require": ["typ"]}, "require: expected a section with keys below it"),
                ({"audience": []}, "audience: expected an audience as text, or a list of at least one"),
                ({"audience": 7}, "audience: expected an audience as text, or a list of at least one"),
                ({"algorithms": "RS256"}, "algorithms: expected a list"),
                ({"algorithms": []}, "algorithms: expected at least one entry"),
                (
                    {"claims": {"key": "https://x/y"}},
                    "claims.key: not a JMESPath expression: Unknown token /; a claim's",
                ),
                (
                    {"claims": {"key": 'join(":", [a])'}},
                    "claims.key: ':' in double quotes is the name of a claim; text",
                ),
                ({"claims": {"key": "join([a])"}}, "claims.key: not a JMESPath expression: Expected 2 arguments"),
                ({"claims": {"key": "a ||"}}, "claims.key: not a JMESPath expression: Incomplete expression"),
                ({"claims": {"key": "lower(a)"}}, "claims.key: not a JMESPath expression: Unknown function: lower()"),
            )
        ],
        ("auth.issuers", [{"issuer": "uni", "exchange": {"url": "https://a/t"}}], "auth.issuers[0]: jwks: needed"),
        ("server", None, "server: expected a section with keys below it"),
        ("limits.tenants", {123: {}}, "limits.tenants[123]: expected text as a key; quote it"),
        ("limits.store", "mongodb://x", "limits.store: "),
        ("limits.journal", "/j", "limits: journal: only with a shared store; memory is never away"),
        ("limits.events", {}, "limits: events: only with a shared store; nobody else reads this process's memory"),
        ("limits.events", {"stream": "x"}, "limits.events.stream: "),
        ("limits.default_plan", "gold", "limits: default_plan: there is no plan 'gold'; plans: standard"),
        ("limits.plans.a", [{"name": "x", "window": "1m"}], "limits.plans.a[0]: expected exactly one of requests"),
        ("limits.plans.a", [{"name": "x", "requests": 1}], "limits.plans.a[0]: window: needed with requests"),
        ("limits.plans.a", [{"name": "x", "concurrent": 1, "window": "1m"}], "limits.plans.a[0]: window: needed"),
        (
            "limits.plans.a",
            [{"name": "x", "requests": 1, "window": "1m", "weights": {"input": 2}}],
            "limits.plans.a[0]: weights: only with tokens",
        ),
        *[
            ("limits.plans.a", [{"name": "x", "tokens": 1, "window": "1m", **rule}], f"limits.plans.a[0]{says}")
            for rule, says in (
                ({"weights": {"outptu": 2}}, ".weights.outptu: is not a key of this section"),
                ({"weights": {"output": 1000.5}}, ".weights.output: "),
                ({"weights": {"output": -1}}, ".weights.output: "),
                ({"weights": {"output": True}}, ".weights.output: "),
                ({"weights": {"output": "4"}}, ".weights.output: "),
                ({"weights": {"output": float("nan")}}, ".weights.output: "),
                ({"weights": {"cached": 0.0625}}, ".weights.cached: expected at most 3 decimals"),
                ({"weights": {"output": 4}, "count": "input"}, ": weights.output: this rule counts input tokens only"),
                ({"weights": {"cached": 0}, "count": "output"}, ": weights.cached: this rule counts output tokens"),
                ({"weights": {"input": 0, "output": 0}}, ": weights: all are 0, so that the rule counts nothing"),
                ({"weights": {"input": 0}, "count": "input"}, ": weights: all are 0"),
            )
        ],
        ("limits.tenants", {"acme": {"plan": "gold"}}, "limits: tenants.acme.plan: there is no plan 'gold'"),
        (
            "limits.tenants",
            {"acme": {"keys": {"k": {"override": {"key-requests": {"tokens": 5}}}}}},
            "limits: tenants.acme.keys.k.override.key-requests: the rule does not limit tokens",
        ),
        ("models.m.pool", "q", "models.m.pool: there is no pool 'q'; pools: p"),
        ("models.m.pool", {"p": 1, "q": 0}, "models.m.pool: there is no pool 'q'; pools: p"),
        ("models.m.pool", {"p": 0}, "models.m: pool: no pool has a weight above 0"),
        ("models.m.pool", {}, "models.m: pool: no pool has a weight above 0"),
        ("models.m.pool", ["p"], "models.m.pool: expected the name of a pool, or names of pools with weights"),
        *[("models.m.pool", {"p": weight}, "models.m.pool.p: ") for weight in (-1, 1000.5, True, "5", float("nan"))],
        ("models.m.fallbacks", ["n"], "models.m.fallbacks: there is no model 'n'; models: m"),
        ("models.m.fallbacks", ["m"], "models.m.fallbacks: 'm' is this model itself"),
        *[
            ("models.n", {"pool": "p", "aliases": ["x"], "fallbacks": fallbacks}, f"models.n.fallbacks: {says}")
            for fallbacks, says in (
                (["x"], "'x' is an alias; name the model, 'n'"),
                (["m", "m"], "'m' stands here twice"),
            )
        ],
        ("models.n", {"pool": "p", "aliases": ["m"]}, "models.n.aliases: 'm' already means 'm'"),
        (
            "limits.plans.a",
            [{"name": "x", "concurrent": 1, "on_store_failure": "refuse"}],
            "limits.plans.a[0].on_store_failure: ",
        ),
        ("models.m.media_tokens", {"video_url": 9}, "models.m: media_tokens: 'video_url' is no kind of content_parts"),
        ("models.m.media_tokens", {"text": 9}, "models.m: media_tokens: 'text' is no kind of content_parts"),
        ("models.m.media_tokens", {"image_url": -1}, "models.m.media_tokens.image_url: "),
        ("models.m.timeouts", {"firstbyte": "1s"}, "models.m.timeouts.firstbyte: is not a key of this section"),
        ("pools.p.timeouts", {"total": "0s"}, "pools.p.timeouts.total: "),
        ("pools.p.keep_alive_comments", "50ms", "pools.p.keep_alive_comments: "),
        ("pools.p.replicas", [], "pools.p.replicas: "),
        ("pools.p.replicas", ["http://a", "http://a"], "pools.p.replicas: the same URL stands here twice"),
        ("pools.p.replicas", ["http://user:secret@a"], "pools.p.replicas[0].url: "),
        ("pools.p.replicas", ["http://a/v1?key=secret"], "pools.p.replicas[0].url: "),
        ("pools.p.replicas", [{"url": "http://a", "server_name": "a b"}], "pools.p.replicas[0].server_name: "),
        ("pools.p.discovery", {}, "pools.p.discovery: expected exactly one of dns, kubernetes, file"),
        ("pools.p.discovery", {"dns": {"name": "a"}, "file": {"path": "b"}}, "pools.p.discovery: expected exactly one"),
        ("pools.p.discovery", {"dns": {"name": "_a._tcp.b", "port": 1}}, "pools.p.discovery.dns: port: SRV records"),
        (
            "pools.p.discovery",
            {"dns": {"name": "a", "servers": ["b"]}},
            "pools.p.discovery.dns.servers[0]: expected an",
        ),
        ("pools.p.discovery", {"dns": {"name": "a", "interval": "1ms"}}, "pools.p.discovery.dns.interval: "),
        ("pools.p.discovery", {"kubernetes": {}}, "pools.p.discovery.kubernetes: expected exactly one of service"),
        (
            "pools.p.discovery",
            {"kubernetes": {"service": "a", "api": "http://b"}},
            "pools.p.discovery.kubernetes.api: ",
        ),
        ("pools.p.discovery", {"file": {"path": "a"}, "max_replicas": 0}, "pools.p.discovery.max_replicas: "),
        ("pools.p.api_key", "${NOPE}", "pools.p.api_key: ${NOPE} is not set in the environment"),
        ("pools.p.api_key", "${file:/nope}", "pools.p.api_key: ${file:/nope} cannot be read"),
    ],
)
def test_a_mistake_is_named_with_its_path(path: str, value: Any, says: str) -> None:
    assert any(problem.startswith(says) for problem in problems(changed(path, value))), problems(changed(path, value))


def test_every_mistake_is_named_at_once() -> None:
    tree = GOOD | {"server": {"a": 1}, "admin": {"b": 2}}
    assert [problem.split(":")[0] for problem in problems(yaml.safe_dump(tree))] == ["server.a", "admin.b"]


def test_what_follows_from_a_mistake_is_not_told_as_another() -> None:
    (problem,) = problems(changed("auth.issuers", [{"issuer": "https://a", "algorithms": ["HS256"]}]))
    assert problem.startswith("auth.issuers[0].algorithms[0]: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML"),
        ("", "is empty or not a mapping"),
        ("- 1", "is empty or not a mapping"),
        ("models: {m: {pool: p}, m: {pool: q}}", "the key 'm' stands twice"),
        ("? [a]\n: 1", "a key must be plain text"),
    ],
)
def test_what_is_not_a_config_at_all(text: str, says: str) -> None:
    assert says in problems(text)[0]


def test_secrets_come_from_the_environment_and_from_files_and_are_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("from-file\n")
    text = changed("pools.p.api_key", f"${{A}}-${{file:{secret}}}")
    config = file.parse(text, environment={"A": "from-env"})
    key = config.pools["p"].api_key
    assert key is not None
    assert key.get_secret_value() == "from-env-from-file"
    assert "from-" not in repr(config)


@pytest.mark.parametrize("written", ["1e+06", "1000000.0", "1000000", "1.0e6"])
def test_integers_may_come_as_helm_renders_them(written: str) -> None:
    text = changed("metrics.max_tenants", "HERE").replace("HERE", written)
    assert file.parse(text).metrics.max_tenants == 1_000_000


@pytest.mark.parametrize("written", ["1.5", "true", "'12'", "null", "-1", "1e400"])
def test_what_is_no_integer_is_refused(written: str) -> None:
    assert problems(changed("metrics.max_tenants", "HERE").replace("HERE", written))


@pytest.mark.parametrize(
    ("text", "seconds"), [("100ms", 0.1), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("400d", 34_560_000)]
)
def test_durations(text: str, seconds: float) -> None:
    assert units.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["4e2", "on", "1.10", "a/b.c"])
def test_quoted_names_stay_names(name: str) -> None:
    tree = GOOD | {"models": {name: {"pool": "p"}}}
    assert list(file.parse(yaml.safe_dump(tree)).models) == [name]


def test_the_file_is_found_where_it_was_said(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert file.find(path) == path
    with pytest.raises(BadConfig, match="cannot be read"):
        file.load(path)


def test_plain_http_to_another_machine_is_noticed() -> None:
    clear = "http://idp.example/x"
    issuers: list[dict[str, Any]] = [
        {"issuer": "a", "jwks": clear},
        {"issuer": "http://idp.example"},
        {"issuer": "b", "jwks": "https://idp.example/x", "exchange": {"url": clear}},
        {"issuer": "http://c", "introspection": {"url": clear, "forms": []}},
        {"issuer": "d", "jwks": "http://127.0.0.1/x"},
        {"issuer": "http://localhost:8080"},
        {"issuer": "e", "jwks": "/keys.json"},
    ]
    auth = file.parse(changed("auth.issuers", issuers)).auth
    assert auth.in_the_clear() == [
        "auth.issuers[0].jwks",
        "auth.issuers[1].issuer",
        "auth.issuers[2].exchange.url",
        "auth.issuers[3].introspection.url",
    ]


def test_models_that_are_named_but_not_there_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(
        yaml.safe_dump([{"key": "k", "tenant": "t", "sha256": "a" * 64, "models": ["no"]}])
    )
    tree = GOOD | {
        "auth": {
            "api_keys": [{"key": "k", "tenant": "t", "sha256": "b" * 64, "models": ["acme/*", "other/*"]}],
            "api_keys_file": str(tmp_path / "keys.yaml"),
            "tenants": {
                "t": {"models": [], "keys": {"k": {"models": ["acme/tiny", "small"]}}},
                "u": {"models": ["no"]},
            },
        },
        "models": {"acme/tiny": {"pool": "p", "aliases": ["small"]}},
        "limits": {
            "plans": {"a": [{"name": "r", "concurrent": 1}, {"name": "s", "concurrent": 1, "models": ["Acme/*"]}]}
        },
    }
    assert list(unmatched(file.parse(yaml.safe_dump(tree)))) == [
        "auth.api_keys[0].models[1], 'other/*',",
        "auth.api_keys_file[0].models[0], 'no',",
        "auth.tenants.t.keys.k.models[1], 'small',",
        "auth.tenants.u.models[0], 'no',",
        "limits.plans.a[1].models[0], 'Acme/*',",
    ]


@pytest.mark.parametrize(
    ("quota", "at_most"), [("150000 100000", 2), ("100000 100000", 1), ("20000 100000", 1), ("max 100000", 10**6)]
)
def test_as_many_workers_as_cpus_are_no_more_than_the_quota_has(tmp_path: Path, quota: str, at_most: int) -> None:
    file_of_cgroup = tmp_path / "cpu.max"
    file_of_cgroup.write_text(f"{quota}\n")
    assert cpus.usable(file_of_cgroup) == min(at_most, cpus.usable(tmp_path / "none"))


def test_workers_share_their_gateways_part_and_the_command_line_comes_first(tmp_path: Path) -> None:
    shared = GOOD | {"limits": {"store": "redis://redis", "expected_processes": 3}, "server": {"workers": 2}}
    text = yaml.safe_dump(shared)
    assert file.parse(text).limits.processes == 6
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert file.read(path, workers="4").settings.limits.processes == 12
    assert file.read(path, workers="auto").settings.server.workers == cpus.usable()
    with pytest.raises(BadConfig, match=r"server\.workers: "):
        file.read(path, workers="many")


@pytest.mark.parametrize("plans", [("a", "b"), ("b", "a")])
def test_an_override_may_be_of_any_plans_rule_of_its_name(plans: tuple[str, str]) -> None:
    rules = {"a": [{"name": "cap", "requests": 1, "window": "1m"}], "b": [{"name": "cap", "tokens": 1, "window": "1m"}]}
    tenants = {"acme": {"plan": "a", "override": {"cap": {"requests": 5}}}}
    given = {"plans": {name: rules[name] for name in plans}, "default_plan": "a", "tenants": tenants}
    assert Limits.model_validate(given).tenants["acme"].override["cap"].requests == 5


def test_a_streams_length_may_be_written_as_helm_writes_it() -> None:
    limits = Limits.model_validate({"store": "redis://a/0", "events": {"max_length": 1e6}})
    assert limits.events is not None
    assert limits.events.max_length == 1_000_000
