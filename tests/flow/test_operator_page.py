"""/admin/ on a running gateway: one document in which names and texts of others are inert; small, and quick."""

import asyncio
import json
import shlex
import time
from base64 import b64encode
from hashlib import sha256
from xml.etree import ElementTree as ET

from click.testing import CliRunner

from gateway.cli import main
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine, never, script
from tests.reloading import reload
from tests.transcripts import chat, chat_role, chunked, head, http

EVIL = "\"'><script>alert(1)</script>&amp;<!--"
# Turns the direction of what comes after it, and a terminal's text red.
TRICKY = "\u202ered\x1b[31m"
PATH = "/<img/onerror='alert(1)'>;$(touch)&x`y`"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "script", "main", "section"),
    *("h1", "h2", "p", "ul", "li", "span", "a", "code", "table", "thead", "tbody", "tr", "th", "td"),
}
MANY = 200
LOAD = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc 0.5\n"
HI = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}


def read(reply: Reply) -> ET.Element:
    """Return the page, which is well-formed, holds no element and attribute of others, and is let run as it is."""
    assert reply.status == 200, reply.body
    root = ET.fromstring(reply.body)
    assert {element.tag for element in root.iter()} <= TAGS
    assert {name for element in root.iter() for name in element.attrib} <= {"class", "href", "lang", "charset"} | {
        "name",
        "content",
    }
    policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        (inline,) = root.iter(tag)
        assert policy[kind] == f"'sha256-{b64encode(sha256((inline.text or '').encode()).digest()).decode()}'"
    return root


def texts(root: ET.Element, tag: str) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(tag)]


def command(*arguments: str) -> str:
    ended = CliRunner().invoke(main, ["status", *arguments])
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ended.stdout


async def shown(door: Door) -> ET.Element:
    return read(await door.get_admin("/admin/"))


async def test_whatever_names_there_are_the_page_shows_them_and_nothing_of_them_runs(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    scripted_engine.probe = script(http(LOAD))
    scripted_engine.answer(head(), *map(chunked, [chat_role(), chat(" a")]), never)
    one = {"url": scripted_engine.url, "max_in_flight": 1}
    door = await open_door(
        scripted_engine.url,
        limits={"plans": {"standard": [{"name": "few", "per": ["key"], "requests": 2, "window": "day"}]}},
        models={"evil": {"pool": EVIL}, "tricky": {"pool": TRICKY}},
        pools={
            "main": {"replicas": [one], "load": {"interval": "50ms"}, "queue": {"max_waiting": 1}},
            EVIL: {"replicas": [f"http://127.0.0.1:1{PATH}"], "health": {"interval": "50ms", "unhealthy_after": 1}},
            TRICKY: {"replicas": ["http://127.0.0.1:1"]},
        },
    )
    headers = {"Authorization": f"Bearer {door.token()}"}
    async with door.session.post(door.url + CHAT, json=HI | {"stream": True}, headers=headers) as stream:
        assert b" a" in await stream.content.readuntil(b' a"')
        waits = asyncio.create_task(door.post(CHAT, HI, token=door.token()))
        await door.until(lambda samples: samples.total("gateway_waiting_calls") == 1)
        await door.until(lambda samples: samples.total("gateway_engine_calls") == 7)
        await door.until(lambda samples: samples.total("gateway_replica_up", pool=EVIL) == 0)
        assert (await door.post(CHAT, HI, token=door.token())).status == 429
        assert (await door.post(CHAT, HI, token="forged")).status == 401
        (problem,) = await reload(door, lambda settings: settings.update({EVIL: 1}))
        page = await shown(door)
        assert b"<h1>Gateway " in (await door.get_admin("/admin")).body
        status = (await door.get_admin("/admin/status")).json()
        listener = door.admin_url.removeprefix("http://")
        told = [await asyncio.to_thread(command, "--at", listener, "--format", form) for form in ("table", "json")]
        waits.cancel()
    (pool,) = [pool for pool in status["pools"] if pool["name"] == "main"]
    (replica,) = pool["replicas"]
    assert (replica["in_flight"], replica["max_in_flight"], replica["load"]["waiting"]) == (1, 1, 4)
    assert 0 <= replica["load"]["age_s"] < 5
    assert (pool["in_flight"], sum(pool["queue"]["waiting"].values()), pool["queue"]["max_waiting"]) == (1, 1, 1)
    assert status["calls"] == {"in_flight": 2, "streams": 1, "waiting": 1}
    assert {"by": "limit", "what": "few", "total": 1} in [
        {name: value for name, value in row.items() if name != "lately"} for row in status["amiss"]["data"]
    ]
    assert any(problem in said for said in status["trouble"])
    everything = "".join(page.itertext())
    for said in (EVIL, f"127.0.0.1:1{PATH}", "401 refused", problem, "\\u202ered\\x1b[31m", "Pool main: 1 of 1 places"):
        assert said in everything
    assert not {*TRICKY} & {*everything} - {*"red[31m"}
    commands = texts(page, "code")
    assert len(commands) == 2  # none that would look like another
    assert f"http://127.0.0.1:1{PATH}" in [shlex.split(command)[-1] for command in commands]
    assert {tuple(row.attrib.values()) for row in page.iter("tr") if row.attrib} == {("up",), ("down",)}
    assert [link.attrib["href"] for link in page.iter("a")][:2] == ["../metrics", "../readyz"]
    table, parsed = told
    for said in (
        f"Pool {EVIL}\n",
        "\\u202ered\\x1b[31m",
        "  Pool main: 1 of 1 places to wait are taken.\n",
        "401 refused  ",
    ):
        assert said in table
    assert not {*TRICKY} & {*table} - {*"red[31m"}
    assert json.loads(parsed).keys() == status.keys()
    refused = await door.session.post(door.admin_url + "/admin/")
    assert refused.status == 405


async def test_with_two_hundred_replicas_it_is_small_and_there_at_once(open_door: OpenDoor) -> None:
    replicas = [f"http://127.1.{number // 100}.{number % 100}:1" for number in range(MANY)]
    door = await open_door(*replicas, pools={"main": {"health": {"interval": "1h"}, "max_in_flight": 64}})
    took = []
    for _ in range(10):
        began = time.process_time()
        reply = await door.get_admin("/admin/")
        took.append(time.process_time() - began)
    assert len(texts(read(reply), "code")) == MANY
    assert len(reply.body) < 100_000
    assert min(took) < 0.05
