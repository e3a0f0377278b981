"""API keys: known by their SHA-256 alone, good until their day, and never taken for anything else."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gateway import cli, config
from gateway.config import file
from gateway.errors import Unauthorized
from gateway.identity import api_keys, development
from gateway.identity.authenticate import Authenticator
from gateway.identity.denied import Denied
from gateway.identity.principal import Principal
from gateway.identity.refused import reason_of
from tests.identity_provider import SetClock, b64

# SetClock stands in November 2026.
LATER, BEFORE = "2999-01-01", "2000-01-01"
REST = {"models": {"m": {"pool": "p"}}, "pools": {"p": {"replicas": ["http://127.0.0.1:1"]}}}


def entry(text: str, **members: Any) -> dict[str, Any]:
    return {"key": "batch", "tenant": "acme", "sha256": hashlib.sha256(text.encode()).hexdigest()} | members


@asynccontextmanager
async def authenticator(**auth: Any) -> AsyncIterator[Authenticator]:
    async with aiohttp.ClientSession() as session:
        settings = config.Auth.model_validate(auth)
        built = Authenticator(settings, session, clock=SetClock(), observe=lambda _issuer, _result: None)
        try:
            yield built
        finally:
            await built.close()


async def reason(one: Authenticator, token: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        await one.authenticate(f"Bearer {token}".encode())
    assert token not in refused.value.message
    return reason_of(refused.value)


async def test_a_key_is_who_its_entry_says_and_is_remembered() -> None:
    entries = [entry("sk-a", plan="gold", models=["m*"], expires=LATER), entry("sk-b", key="other")]
    async with authenticator(api_keys=entries) as gateway:
        assert gateway.ready  # there is no issuer to wait for
        assert gateway.recall(b"Bearer sk-a") is None
        assert await gateway.authenticate(b"Bearer sk-a") == Principal("acme", "batch", "gold", ("m*",))
        assert gateway.recall(b"Bearer sk-a") == Principal("acme", "batch", "gold", ("m*",))
        assert await gateway.authenticate(b"bearer sk-b") == Principal("acme", "other")


async def test_an_unknown_and_an_expired_key_are_refused() -> None:
    async with authenticator(api_keys=[entry("sk-a"), entry("sk-old", expires=BEFORE)]) as gateway:
        assert await reason(gateway, "sk-A") == "api_key"
        assert await reason(gateway, "sk-") == "api_key"
        assert await reason(gateway, "sk-aa") == "api_key"
        assert await reason(gateway, "sk-old") == "expired_token"
        assert await reason(gateway, hashlib.sha256(b"sk-a").hexdigest()) == "malformed"
        assert gateway.recall(b"Bearer sk-old") is None


async def test_two_secrets_may_be_one_key_while_it_is_changed_and_are_revoked_as_one() -> None:
    async with authenticator(api_keys=[entry("sk-a"), entry("sk-b")]) as gateway:
        assert await gateway.authenticate(b"Bearer sk-a") == await gateway.authenticate(b"Bearer sk-b")
        gateway.deny(Denied(keys=frozenset({("acme", "batch")})))
        assert [await reason(gateway, token) for token in ("sk-a", "sk-b")] == ["revoked", "revoked"]
        gateway.deny(Denied())
        assert await gateway.authenticate(b"Bearer sk-a") == Principal("acme", "batch")


async def test_issuers_and_keys_stand_side_by_side_and_neither_takes_the_others(tmp_path: Path) -> None:
    signing = development.load_or_create(tmp_path / "key.pem")
    signed = development.sign(signing, tenant="t", key_id="k", plan=None, ttl_s=60, now=SetClock().now())
    both = {"development_key": str(tmp_path / "key.pem"), "api_keys": [entry("sk-a")]}
    async with authenticator(**both) as gateway:
        gateway.start()
        assert await gateway.authenticate(f"Bearer {signed}".encode()) == Principal("t", "k")
        assert await gateway.authenticate(b"Bearer sk-a") == Principal("acme", "batch")
        assert await reason(gateway, f"sk-{signed}") == "api_key"
    async with authenticator(development_key=str(tmp_path / "key.pem")) as gateway:
        assert await reason(gateway, "sk-a") == "malformed"  # where there are no keys it is no kind of token


@given(st.sampled_from([b"{", b" ", b"\t", b"\n", b"\r"]), st.binary(min_size=2, max_size=2))
def test_no_jwt_begins_as_a_key_does(first: bytes, rest: bytes) -> None:
    assert not b64(first + rest).startswith(config.API_KEY_PREFIX)


def test_a_new_key_has_256_random_bits_and_is_found_by_the_digest_that_comes_with_it() -> None:
    made = [api_keys.generate() for _ in range(20)]
    assert len({key for key, _ in made}) == 20
    for key, digest in made:
        assert len(key) == len("sk-") + 43
        assert api_keys.ApiKeys([config.ApiKey(**entry(key))]).accept(key, now=0).principal.key == "batch"
        assert digest == hashlib.sha256(key.encode()).hexdigest()


def problems(**auth: Any) -> list[str]:
    with pytest.raises(file.BadConfig) as bad:
        file.parse(yaml.safe_dump(REST | {"auth": auth}))
    return bad.value.problems


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"sha256": "ab" * 31}, "auth.api_keys[0].sha256: expected a SHA-256: 64 hexadecimal digits"),
        ({"sha256": "xy" * 32}, "auth.api_keys[0].sha256: expected a SHA-256"),
        ({"sha256": 12}, "auth.api_keys[0].sha256: expected a SHA-256: 64 hexadecimal digits, in quotes"),
        ({"sha256": "sk-secret"}, "auth.api_keys[0].sha256: this is a key itself"),
        ({"plan": "gone"}, "auth.api_keys: key 'batch': there is no plan 'gone'; plans: standard"),
        ({"tenant": ""}, "auth.api_keys[0].tenant: "),
        ({"tenant": "a\0b"}, "auth.api_keys[0].tenant: expected printable characters"),
        ({"expires": "soon"}, "auth.api_keys[0].expires: expected a day such as 2027-01-31"),
        ({"expires": "2027-01-31T12:00:00"}, "auth.api_keys[0].expires: expected a day"),
        ({"expires": 5}, "auth.api_keys[0].expires: expected a day"),
        ({"secret": "x"}, "auth.api_keys[0].secret: is not a key of this section"),
    ],
)
def test_a_wrong_entry_is_named_and_never_shown(members: dict[str, Any], says: str) -> None:
    (problem,) = problems(api_keys=[entry("sk-a", **members)])
    assert problem.startswith(says)
    assert "sk-secret" not in problem


def test_the_same_key_twice_is_an_error(tmp_path: Path) -> None:
    (problem,) = problems(api_keys=[entry("sk-a"), entry("sk-a", key="other")])
    assert "key 'other' of tenant 'acme' has the same sha256 as key 'batch' of tenant 'acme'" in problem
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump([entry("sk-a")]))
    (problem,) = problems(api_keys=[entry("sk-a")], api_keys_file=str(tmp_path / "keys.yaml"))
    assert "has the same sha256" in problem


@pytest.mark.parametrize("written", ["2027-01-31", "'2027-01-31'", "2027-01-31T00:00:00Z", "2027-01-31T01:00:00+01:00"])
def test_an_end_is_a_day_or_a_time_however_yaml_reads_it(written: str) -> None:
    text = yaml.safe_dump(REST | {"auth": {"api_keys": [entry("sk-a", expires="HERE")]}}).replace("HERE", written)
    (one,) = file.parse(text).auth.api_keys
    assert one.expires == 1_801_353_600


def test_keys_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump([entry("sk-b", key="other")]))
    auth = {"api_keys": [entry("sk-a")], "api_keys_file": str(path)}
    settings = file.parse(yaml.safe_dump(REST | {"auth": auth}))
    assert [one.key for one in settings.auth.all_api_keys] == ["batch", "other"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read: not UTF-8"),
        (b"a: [", "is not YAML"),
        (b"[{key: a, key: b}]", "the key 'key' stands twice"),
        (b"a: 1", "holds no list of keys"),
        (b"", "holds no list of keys"),
        (b"[{key: a, tenant: b, sha256: no}]", "auth.api_keys_file[0].sha256: expected a SHA-256"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, text: bytes | None, says: str) -> None:
    path = tmp_path / "keys.yaml"
    if text is not None:
        path.write_bytes(text)
    (problem,) = problems(api_keys_file=str(path))
    assert problem.startswith("auth.api_keys_file")
    assert says in problem


@pytest.fixture
def new() -> Callable[..., Result]:
    return lambda *options: CliRunner().invoke(cli.main, ["key", "new", *options])


async def test_what_the_command_prints_is_a_key_and_the_entry_that_accepts_it(new: Callable[..., Result]) -> None:
    made = new(
        "--tenant", "acme", "--key", "batch", "--plan", "gold", "--model", "a", "--model", "b/*", "--expires", LATER
    )
    assert (made.exit_code, made.stderr) == (0, "")
    key, _, below = made.stdout.partition("\n")
    assert made.stdout.count(key) == 1
    async with authenticator(api_keys=yaml.safe_load(below)) as gateway:
        expected = Principal("acme", "batch", "gold", ("a", "b/*"))
        assert await gateway.authenticate(f"Bearer {key}".encode()) == expected
    assert new("--tenant", "acme", "--key", "batch").stdout.partition("\n")[0] != key


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tenant", "acme"], "Missing option '--key'"),
        (["--tenant", "", "--key", "k"], "--tenant: "),
        (["--tenant", "acme", "--key", "k", "--expires", "soon"], "--expires: expected a day"),
        (["--tenant", "acme", "--key", "k", "--model", ""], "--model: "),
    ],
)
def test_a_wrong_option_is_named_and_makes_no_key(new: Callable[..., Result], options: list[str], says: str) -> None:
    made = new(*options)
    assert (made.exit_code, made.stdout) == (2, "")
    assert says in made.stderr
