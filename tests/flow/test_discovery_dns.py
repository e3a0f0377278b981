"""Replicas found in the DNS, by a whole gateway that asks a scripted server over real sockets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.clock import SystemClock
from tests.certificates import certified
from tests.dns_server import SILENCE, DnsServer, dns_server
from tests.doors import CHAT, Door, OpenDoor, Samples
from tests.engines import ScriptedEngine
from tests.envelope import error_of
from tests.identity_provider import SetClock

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
NAME = "vllm.test."


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


@pytest.fixture
async def engines() -> AsyncIterator[list[ScriptedEngine]]:
    """Three engines at three addresses, on one port; and one on another."""
    engines = [ScriptedEngine() for _ in range(4)]
    await engines[0].start()
    await engines[1].start(engines[0].port, host="127.0.0.2")
    await engines[2].start(engines[0].port, host="127.0.0.3")
    await engines[3].start()
    yield engines
    for engine in engines:
        await engine.close()


def found_by(dns: DnsServer, **more: Any) -> dict[str, Any]:
    entry = {"name": NAME, "servers": [dns.address], "interval": "50ms", **more}
    return {"main": {"discovery": {"dns": entry}, "health": {"interval": "30s"}}}


def there(samples: Samples) -> set[str]:
    return {labels["replica"] for labels in samples.labels("gateway_replica_up")}


def up(*replicas: str) -> Any:
    def is_so(samples: Samples) -> bool:
        return there(samples) == {*replicas} and samples.total("gateway_replica_up") == len(replicas)

    return is_so


async def refreshed(door: Door, result: str, more: int = 2) -> None:
    """Wait until there were some more refreshes of that result."""

    def count(samples: Samples) -> float:
        return samples.total("gateway_discovery_refreshes_total", pool="main", result=result)

    before = count(await door.metrics())
    await door.until(lambda samples: count(samples) >= before + more)


async def test_addresses_are_replicas_and_come_and_go(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    port = engines[0].port
    dns.records[NAME, "A"] = ["127.0.0.1"]
    door = await open_door(pools=found_by(dns, port=port))
    assert (await door.post(CHAT, ASK)).status == 200  # the first call already
    dns.records[NAME, "A"] = ["127.0.0.3", "127.0.0.2"]
    await door.until(up(f"127.0.0.2:{port}", f"127.0.0.3:{port}"))
    for _ in range(10):
        assert (await door.post(CHAT, ASK)).status == 200
    assert len(engines[0].requests) == 1
    assert len(engines[1].requests) + len(engines[2].requests) == 10
    assert engines[1].probes[0].header("host") == f"vllm.test:{port}"
    assert {request.header("host") for engine in engines[1:] for request in engine.requests} == {f"vllm.test:{port}"}


async def test_both_families_are_asked_for_and_one_that_fails_changes_nothing(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    port = engines[0].port
    dns.records[NAME, "A"], dns.records[NAME, "AAAA"] = ["127.0.0.1"], ["::1"]
    both = {f"127.0.0.1:{port}", f"[::1]:{port}"}
    door = await open_door(pools=found_by(dns, port=port))
    assert there(await door.metrics()) == both
    dns.rcodes["AAAA"] = "SERVFAIL"
    await refreshed(door, "failed")
    assert there(await door.metrics()) == both
    dns.rcodes.clear()
    dns.records[NAME, "AAAA"] = []
    await door.until(lambda samples: there(samples) == {f"127.0.0.1:{port}"})


async def test_one_family_may_be_asked_for_alone(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    dns.records[NAME, "A"], dns.rcodes["AAAA"] = ["127.0.0.1"], SILENCE
    door = await open_door(pools=found_by(dns, port=engines[0].port, family="ipv4"))
    assert (await door.post(CHAT, ASK)).status == 200
    assert {kind for kind, _ in dns.asked} == {"A"}


@pytest.mark.parametrize("failure", ["SERVFAIL", "REFUSED", SILENCE, "garbage"])
async def test_a_server_in_trouble_changes_nothing_and_is_asked_again(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine], failure: str
) -> None:
    port = engines[0].port
    dns.records[NAME, "A"] = ["127.0.0.1"]
    timeout = {"timeout": "100ms"} if failure in (SILENCE, "garbage") else {}  # garbage is no answer
    door = await open_door(pools=found_by(dns, port=port, empty_after="0s", **timeout))
    await door.until(up(f"127.0.0.1:{port}"))
    if failure == "garbage":
        dns.garbage = b"\xff" * 20
    else:
        dns.rcodes = {"A": failure, "AAAA": failure}
    await refreshed(door, "failed", more=3)
    assert (await door.post(CHAT, ASK)).status == 200
    samples = await door.metrics()
    assert there(samples) == {f"127.0.0.1:{port}"}
    assert samples.total("gateway_discovery_age_seconds", pool="main") > 0.1
    dns.rcodes, dns.garbage = {}, None
    dns.records[NAME, "A"] = ["127.0.0.2"]
    await door.until(up(f"127.0.0.2:{port}"))


async def test_a_server_that_is_dead_at_the_start_stops_nothing(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    port = engines[0].port
    dns.rcodes = {"A": SILENCE, "AAAA": SILENCE}
    door = await open_door(pools=found_by(dns, port=port, timeout="100ms"))
    # Its first failure was enough: while a start waits for sources that say nothing at all, there are a dozen.
    assert (await door.metrics()).total("gateway_discovery_refreshes_total", result="failed") <= 5
    error_of(await door.post(CHAT, ASK), 503, "no_replica_available", "server_error")
    ready = await door.get_admin("/readyz")
    assert (ready.status, ready.json()["checks"]["pools"]) == (503, "no replica of any pool is up")
    dns.rcodes, dns.records[NAME, "A"] = {}, ["127.0.0.1"]
    await door.until(up(f"127.0.0.1:{port}"))
    assert (await door.post(CHAT, ASK)).status == 200
    assert (await door.get_admin("/readyz")).status == 200


@pytest.mark.parametrize("nothing", ["NXDOMAIN", "no addresses"])
async def test_a_name_that_suddenly_has_nothing_is_not_believed_at_once(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine], nothing: str
) -> None:
    port = engines[0].port
    dns.records[NAME, "A"] = ["127.0.0.1"]
    clock = SetClock(time=SystemClock().now())
    door = await open_door(clock=clock, pools=found_by(dns, port=port, empty_after="1m"))
    if nothing == "NXDOMAIN":
        dns.records.clear()
    else:
        dns.records[NAME, "A"] = []
    await refreshed(door, "unchanged")
    clock.advance(59)
    await refreshed(door, "unchanged")
    assert (await door.post(CHAT, ASK)).status == 200
    clock.advance(1)
    await door.until(up())
    error_of(await door.post(CHAT, ASK), 503, "no_replica_available", "server_error")


async def test_srv_records_bring_ports_and_weights(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    other = engines[3]
    dns.records["_http._tcp.vllm.test.", "SRV"] = [
        f"10 30 {engines[0].port} one.test.",
        f"10 10 {other.port} Two.test.",
        f"20 10 {engines[2].port} late.test.",
    ]
    dns.records["one.test.", "A"] = ["127.0.0.1"]
    dns.beside["two.test.", "A"] = ["127.0.0.1"]
    pools = found_by(dns, name="_http._tcp.vllm.test")
    pools["main"]["balance"] = "round_robin"
    door = await open_door(pools=pools)
    for _ in range(20):
        assert (await door.post(CHAT, ASK)).status == 200
    assert there(await door.metrics()) == {f"127.0.0.1:{engines[0].port}", f"127.0.0.1:{other.port}"}
    assert ("A", "udp") in dns.asked
    assert other.requests[0].header("host") == f"vllm.test:{other.port}"
    weights = {replica.name: replica.weight for _, replica in door.gateway._pools.replicas}
    assert weights[f"127.0.0.1:{engines[0].port}"] == 3 * weights[f"127.0.0.1:{other.port}"]
    dns.rcodes["A"] = "SERVFAIL"  # of a target: the answer is none
    await refreshed(door, "failed")
    assert len(there(await door.metrics())) == 2


async def test_an_answer_too_long_for_udp_comes_by_tcp(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine]
) -> None:
    dns.truncates = True
    dns.records[NAME, "A"] = [f"127.0.1.{number}" for number in range(200)] + ["127.0.0.1"]
    entry = found_by(dns, port=engines[0].port, family="ipv4")
    entry["main"]["discovery"]["max_replicas"] = 201
    door = await open_door(pools=entry)
    assert len(there(await door.metrics())) == 201
    assert ("A", "tcp") in dns.asked


async def test_more_than_max_replicas_are_left_out_and_the_log_says_so(
    open_door: OpenDoor, dns: DnsServer, engines: list[ScriptedEngine], caplog: pytest.LogCaptureFixture
) -> None:
    port = engines[0].port
    dns.records[NAME, "A"] = ["127.0.0.2", "127.0.0.3"]
    entry = found_by(dns, port=port)
    entry["main"]["discovery"]["max_replicas"] = 2
    door = await open_door(pools=entry)
    dns.records[NAME, "A"] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    await refreshed(door, "unchanged")
    assert there(await door.metrics()) == {f"127.0.0.2:{port}", f"127.0.0.3:{port}"}
    assert "taken: 2, left out: 1" in caplog.text


async def test_engines_with_tls_are_found_by_address_and_known_by_name(
    open_door: OpenDoor,
    dns: DnsServer,
    engines: list[ScriptedEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ScriptedEngine()
    tls, pem = certified(tmp_path, name="vllm.test")
    shown: list[str | None] = []
    tls.sni_callback = lambda _, name, __: shown.append(name)
    await engine.start(tls=tls)
    engines.append(engine)  # which closes it
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    dns.records[NAME, "A"] = ["127.0.0.1"]
    door = await open_door(pools=found_by(dns, port=engine.port, scheme="https"))
    assert (await door.post(CHAT, ASK)).status == 200
    assert engine.requests[0].header("host") == f"vllm.test:{engine.port}"
    other = await open_door(pools=found_by(dns, port=engine.port, scheme="https", server_name="other.test"))
    error_of(await other.post(CHAT, ASK), 502, "upstream_error", "upstream_error")
    assert {*shown} == {"vllm.test", "other.test"}
