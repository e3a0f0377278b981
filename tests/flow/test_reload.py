"""A config that is read again while the gateway serves: wholly or not at all, and calls under way keep theirs."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.calls.usage import BYTES_PER_TOKEN
from tests.deadlines import DEADLINE_S
from tests.doors import CHAT, MODEL, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.reloading import Change, active, put, put_all, read_again, reload, rewrite
from tests.transcripts import LAST_CHUNK, answer, chunked, head, http, transcript

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}
MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
UNSTEADY = Path("/proc/sys/kernel/random/uuid")
TOKENS = [{"name": "tokens", "per": ["key"], "tokens": 1000, "count": "output", "window": "1h"}]


async def status(door: Door, **more: Any) -> int:
    return (await door.post(CHAT, ASK | more)).status


def replicas(*engines: ScriptedEngine) -> Change:
    return put("pools/main/replicas", [engine.url for engine in engines])


BAD: dict[str, tuple[str | Change | None, str]] = {
    "not YAML": ("pools: [", "is not YAML"),
    "empty": ("", "is empty or not a mapping"),
    "removed": (None, "cannot be read"),
    "a wrong type": (put("pools/main/attempts", "three"), "pools.main.attempts"),
    "an unknown key": (put("pools/main/atempts", 3), "pools.main.atempts: is not a key of this section"),
    "a pool that there is not": (
        lambda settings: settings["models"].update({MODEL: {"pool": "mian"}}),
        "there is no pool 'mian'",
    ),
    "a secret that there is not": (
        put("pools/main/api_key", "${file:/nowhere}"),
        "pools.main.api_key: ${file:/nowhere}",
    ),
    "a development key that there is not": (put("auth/development_key", "/nowhere"), "auth.development_key: /nowhere"),
    "another address": (put("admin/listen", "127.0.0.1:1"), "admin.listen: a change of it takes a restart"),
    "a port that is none": (put("pools/main/replicas", ["http://127.0.0.1:70000"]), "pools.main.replicas[0].url"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_config_changes_nothing_and_says_why(
    name: str, open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    door = await open_door(scripted_engine.url)
    text, before = door.path.read_text(), await active(door)
    assert await status(door) == 200
    bad, why = BAD[name]
    if bad is None:
        door.path.unlink()
    elif isinstance(bad, str):
        door.path.write_text(bad)
    else:
        rewrite(door, put("limits/plans/standard", [{"name": "none", "requests": 0, "window": "1h"}]))
        rewrite(door, bad)
    problem = "; ".join(await read_again(door))
    assert why in problem
    assert await status(door) == 200  # nothing is half applied
    [line] = [record.getMessage() for record in caplog.records if record.name == "gateway.reload"]
    assert why in line
    assert str(door.path) in line
    samples, told = await door.metrics(), await active(door)
    assert samples.total("gateway_config_reloads_total", result="failed") == 1
    assert samples.total("gateway_config_reload_failed") == 1
    assert {key: told[key] for key in ("file", "sha256", "loaded_at")} == {
        key: before[key] for key in ("file", "sha256", "loaded_at")
    }
    door.path.write_text(text)
    assert await read_again(door) == []
    samples = await door.metrics()
    assert samples.total("gateway_config_reload_failed") == 0
    assert samples.total("gateway_config_reloads_total", result="ok") == 1


async def test_what_holds_can_be_asked_for(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    told = await active(door)
    assert told["file"] == str(door.path)
    assert told["sha256"] == hashlib.sha256(door.path.read_bytes()).hexdigest()
    assert told["last_reload"] is None
    assert await reload(door, put("pools/main/attempts", 2)) == []
    told = await active(door)
    assert told["sha256"] == hashlib.sha256(door.path.read_bytes()).hexdigest()
    assert (told["last_reload"]["result"], told["last_reload"]["because"]) == ("ok", "SIGHUP")
    loaded_at = (await door.metrics()).total("gateway_config_loaded_timestamp_seconds")
    assert told["loaded_at"] == datetime.fromtimestamp(int(loaded_at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_good_one_is_told_in_a_line_with_what_changed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    door = await open_door(scripted_engine.url, pools={"main": {"api_key": "secret-1"}})
    assert await reload(door, put("pools/main/api_key", "secret-2")) == []
    assert await read_again(door) == []
    first, second = [record.getMessage() for record in caplog.records if record.name == "gateway.reload"]
    assert first == f"config {door.path} was read again (SIGHUP) and holds; changed: pools.main.api_key"
    assert second.endswith("changed: nothing")
    await status(door)
    assert scripted_engine.requests[0].header("authorization") == "Bearer secret-2"


@pytest.mark.parametrize("goes", ["model", "pool", "replica"])
async def test_a_stream_to_what_has_left_ends_byte_for_byte_and_is_charged(
    goes: str, open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    old, new = await scripted_engines(), await scripted_engines()
    events, go_on = transcript(" a", " b", usage=(3, 2)), asyncio.Event()
    old.answer(head(), chunked(events[0]), go_on, *map(chunked, events[1:]), LAST_CHUNK)
    door = await open_door(old.url, limits={"plans": {"standard": TOKENS}})
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await door.until(lambda s: s.total("gateway_streams_open") == 1)

    def change(settings: dict[str, Any]) -> None:
        if goes == "replica":
            settings["pools"]["main"]["replicas"] = [new.url]
            return
        settings["pools"]["other"] = {"replicas": [new.url]}
        settings["models"]["acme/other"] = {"pool": "other"}
        if goes == "model":
            del settings["models"][MODEL], settings["pools"]["main"]
        else:
            settings["models"][MODEL]["pool"] = "other"
            del settings["pools"]["main"]

    assert await reload(door, change) == []
    assert await status(door) == (404 if goes == "model" else 200)
    assert len(old.requests) == 1
    shown = [one["id"] for one in (await door.get("/v1/models")).json()["data"]]
    assert (MODEL in shown) == (goes != "model")
    go_on.set()
    assert (await reply).body == b"".join(events)
    samples = await door.idle()
    assert samples.total("gateway_tokens_total", model=MODEL, kind="completion", source="engine") == (
        2 if goes == "model" else 4
    )
    assert samples.total("gateway_requests_total", model=MODEL, outcome="ok") == (1 if goes == "model" else 2)
    there = {labels["replica"] for labels in samples.labels("gateway_replica_up")}
    assert there == {new.url.removeprefix("http://")}
    used = (await door.get_admin("/admin/usage?group_by=model")).json()["data"]
    assert {row["model"]: row["completion_tokens"] for row in used}[MODEL] == (2 if goes == "model" else 4)


async def test_what_left_is_asked_no_more_and_no_series_of_it_stays(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    old, new = await scripted_engines(), await scripted_engines()
    door = await open_door(old.url, pools={"main": {"health": {"interval": "50ms"}}})
    assert await status(door) == 200
    assert await reload(door, replicas(new)) == []
    assert await status(door) == 200
    await old.requests[0].connection.gone()
    probed, seen = len(old.probes), len(new.probes)
    async with asyncio.timeout(DEADLINE_S):
        while len(new.probes) < seen + 3:
            await asyncio.sleep(0.01)
    assert len(old.probes) == probed
    name = old.url.removeprefix("http://")
    assert f'replica="{name}"' not in (await door.metrics()).text


async def test_a_retry_that_is_pending_goes_to_the_replica_that_came(
    open_door: OpenDoor, scripted_engines: MoreEngines
) -> None:
    old, new = await scripted_engines(), await scripted_engines()
    fail = asyncio.Event()
    old.answer(fail, http(b"", status="500 X"))
    door = await open_door(old.url)
    reply = asyncio.create_task(door.post(CHAT, ASK))
    await old.asked()
    assert await reload(door, replicas(new)) == []
    fail.set()
    assert (await reply).status == 200
    assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_what_is_known_of_a_replica_and_a_model_stays(open_door: OpenDoor, scripted_engines: MoreEngines) -> None:
    ill, well = await scripted_engines(), await scripted_engines()
    ill.default = _fails
    pool = {"replicas": [{"url": ill.url, "weight": 1000}, well.url], "breaker": {"failures": 2, "open_for": "60s"}}
    door = await open_door(pools={"main": pool})
    for _ in range(8):
        assert await status(door) == 200
    samples = await door.metrics()
    assert samples.total("gateway_breaker_open", replica=ill.url.removeprefix("http://")) == 1
    learned = samples.total("gateway_bytes_per_token", model=MODEL)
    asked = len(ill.requests)
    assert await reload(door, put("pools/main/attempts", 2)) == []
    samples = await door.metrics()
    assert samples.total("gateway_bytes_per_token", model=MODEL) == learned != BYTES_PER_TOKEN
    assert await status(door) == 200
    samples = await door.metrics()
    assert samples.total("gateway_breaker_open", replica=ill.url.removeprefix("http://")) == 1
    assert len(ill.requests) == asked


async def _fails(_request: Any, connection: Any) -> None:
    await connection.send(http(b"", status="500 X"))


async def test_a_limit_below_what_is_used_refuses_until_it_refills_and_counts_go_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    rule = {"name": "calls", "per": ["key"], "requests": 100, "window": "10m"}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    for _ in range(10):
        reply = await door.post(CHAT, ASK)
    assert reply.headers["x-ratelimit-remaining-requests"] == "90"
    assert await reload(door, put("limits/plans/standard", [rule | {"requests": 5}])) == []
    refused = await door.post(CHAT, ASK)
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-limit-requests"] == "5"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert await reload(door, put("limits/plans/standard", [rule | {"requests": 50}])) == []
    reply = await door.post(CHAT, ASK)
    assert reply.status == 200
    assert 38 <= int(reply.headers["x-ratelimit-remaining-requests"]) <= 40


async def test_slots_that_are_held_count_against_a_lower_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    rule = {"name": "slots", "per": ["key"], "concurrent": 2}
    go_on = asyncio.Event()
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    for _ in range(2):
        scripted_engine.answer(go_on, http(b"{}"))
    under_way = [asyncio.create_task(door.post(CHAT, ASK)) for _ in range(2)]
    await scripted_engine.asked(2)
    assert await reload(door, put("limits/plans/standard", [rule | {"concurrent": 1}])) == []
    assert await status(door) == 429
    go_on.set()
    await asyncio.gather(*under_way)
    await door.idle()
    assert await status(door) == 200


async def test_overrides_are_laid_over_the_new_limits(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    rule = {"name": "calls", "per": ["key"], "requests": 100, "window": "1h"}
    door = await open_door(scripted_engine.url, limits={"plans": {"standard": [rule]}})
    asked = {"tenant": "acme", "rule": "calls", "requests": 7}
    async with door.session.put(door.admin_url + "/admin/limits/rules", json=asked) as answer:
        assert answer.status == 200
    assert (await door.post(CHAT, ASK)).headers["x-ratelimit-limit-requests"] == "7"
    assert await reload(door, put("limits/plans/standard", [rule | {"requests": 50}])) == []
    assert (await door.post(CHAT, ASK)).headers["x-ratelimit-limit-requests"] == "7"
    assert (await door.post(CHAT, ASK, token=door.token(tenant="zeta"))).headers["x-ratelimit-limit-requests"] == "50"
    other = rule | {"name": "others"}
    assert await reload(door, put("limits/plans/standard", [other])) == []
    [row] = (await door.get_admin("/admin/limits")).json()["data"]
    assert (row["in_force"], "No plan has a rule" in row["fault"]) == (False, True)
    assert (await door.post(CHAT, ASK)).headers["x-ratelimit-limit-requests"] == "100"
    assert await reload(door, put("limits/plans/standard", [rule])) == []
    assert (await door.post(CHAT, ASK)).headers["x-ratelimit-limit-requests"] == "7"


async def test_a_call_keeps_the_timeouts_that_it_began_with(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    go_on = asyncio.Event()
    door = await open_door(scripted_engine.url)
    scripted_engine.answer(go_on, http(answer("chat", "Hi", usage=(3, 1))))
    reply = asyncio.create_task(door.post(CHAT, ASK))
    await scripted_engine.asked()
    assert await reload(door, put("pools/main/timeouts", {"connect": "10s", "answer": "100ms"})) == []
    scripted_engine.answer(go_on, http(answer("chat", "Hi", usage=(3, 1))))
    late = await door.post(CHAT, ASK)
    assert late.error["code"] == "upstream_timeout"
    go_on.set()
    assert (await reply).status == 200


async def test_a_file_that_is_another_at_every_look_is_not_taken_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    secret = f"${{file:{UNSTEADY}}}"
    watched = {"watch_config": "100ms"}
    door = await open_door(scripted_engine.url, server=watched, pools={"main": {"api_key": secret}})
    await asyncio.sleep(0.5)  # some looks
    assert (await door.metrics()).total("gateway_config_reloads_total") == 0
    assert await reload(door, put("pools/main/api_key", "steady")) == []  # told to, it does not look first
    rewrite(door, put("pools/main/api_key", "another"))
    await door.until(lambda s: s.total("gateway_config_reloads_total", result="ok") == 2)
    assert (await active(door))["last_reload"]["because"] == "its content changed"


async def test_a_reload_while_the_gateway_stops_is_ignored(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, events = asyncio.Event(), transcript(" a", " b")
    scripted_engine.answer(head(), chunked(events[0]), go_on, *map(chunked, events[1:]), LAST_CHUNK)
    door = await open_door(scripted_engine.url)
    reply = asyncio.create_task(door.post(CHAT, STREAM))
    await door.until(lambda s: s.total("gateway_streams_open") == 1)
    stopping = asyncio.create_task(door.gateway.stop())
    async with asyncio.timeout(DEADLINE_S):
        while (await door.get_admin("/readyz")).status != 503:
            await asyncio.sleep(0.01)
    rewrite(door, put("pools/main/replicas", ["http://127.0.0.1:1"]))
    door.gateway.reload()
    assert "is about to stop" in caplog.text
    assert (await door.metrics()).total("gateway_config_reloads_total") == 0
    go_on.set()
    assert (await reply).body == b"".join(events)
    await stopping


async def test_fifty_reloads_leave_nothing_behind(open_door: OpenDoor, scripted_engines: MoreEngines) -> None:
    engines = [await scripted_engines() for _ in range(3)]
    door = await open_door(engines[0].url)
    assert await status(door) == 200
    tasks = _tasks()
    first = yaml.safe_load(door.path.read_text())["pools"]["main"]
    for number in range(50):
        pool = {"replicas": [engine.url for engine in engines[: 1 + number % 3]], "health": {"interval": "30s"}}
        name = "main" if number % 2 else "other"
        change = {"models": {MODEL: {"pool": name, "aliases": ["tiny"]}}, "pools": {name: pool}}
        assert await reload(door, put_all(change)) == []
        assert await status(door) == 200
    assert await reload(door, put_all({"models": {MODEL: {"pool": "last"}}, "pools": {"last": first}})) == []
    async with asyncio.timeout(DEADLINE_S):
        while _tasks() != tasks:
            await asyncio.sleep(0.01)


def _tasks() -> list[str]:
    """Return the names of the gateway's own tasks that live as long as what they are for."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return sorted(name for name in names if not name.startswith("Task-"))


async def test_models_that_come_and_go_stay_a_bounded_number_of_labels(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    assert await status(door) == 200
    for number in range(3):
        many = {f"m-{number}-{one}": {"pool": "main"} for one in range(150)}
        assert await reload(door, put("models", many)) == []
        assert await status(door, model=f"m-{number}-0") == 200
    models = {labels["model"] for labels in (await door.metrics()).labels("gateway_requests_total")}
    assert MODEL not in models  # the first to go
    assert {"m-1-0", "m-2-0"} <= models


async def test_readiness_asks_the_store_where_a_plan_comes_to_deny(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    assert "store" not in (await door.get_admin("/readyz")).json()["checks"]
    assert await reload(door, put("limits/on_store_failure", "deny")) == []
    assert "store" in (await door.get_admin("/readyz")).json()["checks"]


async def test_lines_take_another_form(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    root = logging.getLogger()
    before, level = list(root.handlers), logging.getLogger("gateway").level
    try:
        assert await reload(door, put("logging", {"format": "text"})) == []
        assert await status(door) == 200
        async with asyncio.timeout(DEADLINE_S):
            while not any(" status=200 " in line for line in door.lines):
                door.writer.flush()
                await asyncio.sleep(0.01)
    finally:
        root.handlers[:] = before
        logging.getLogger("gateway").setLevel(level)
