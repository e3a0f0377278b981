"""Bodies as they arrive: too large, too slow, cut, of another kind. No such call reaches an engine or is charged."""

import asyncio
import gzip
from typing import Any

import pytest

from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of
from tests.raw_client import RawClient, raw_client

LIMIT = 64 * 1024
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'
CHUNKED = "Transfer-Encoding: chunked"
RULES = [
    {"name": "requests", "per": ["key"], "requests": 1000, "window": "366d"},
    {"name": "tokens", "per": ["key"], "tokens": 1_000_000, "window": "366d"},
    {"name": "at-once", "per": ["key"], "concurrent": 1},
]


def body_of(size: int) -> bytes:
    """Return a good body of exactly this size."""
    before, after = BODY.split(b"Hi")
    return before + b"a" * (size - len(before) - len(after)) + after


def head(door: Door, *fields: str, path: str = CHAT, token: str | None = None, kind: str = "application/json") -> bytes:
    """Return an authorized call's head with these fields."""
    lines = [f"POST {path} HTTP/1.1", "Host: a", *([f"Content-Type: {kind}"] if kind else [])]
    lines += [f"Authorization: Bearer {token or door.token()}", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def call(door: Door, body: bytes = BODY, *fields: str, **changes: Any) -> bytes:
    return head(door, f"Content-Length: {len(body)}", *fields, **changes) + body


async def opened(open_door: OpenDoor, engine: ScriptedEngine, **requests: str) -> Door:
    return await open_door(
        engine.url, server={"max_body": "64KiB"}, requests=requests, limits={"plans": {"standard": RULES}}
    )


async def nothing_happened(door: Door, engine: ScriptedEngine) -> None:
    """Check that no engine was asked, and that the next call finds the whole of every limit."""
    assert engine.requests == []
    reply = await door.post(CHAT, BODY)
    assert (reply.status, reply.headers["x-ratelimit-remaining-requests"]) == (200, "999")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_may_be_as_large_as_the_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, path: str
) -> None:
    door = await opened(open_door, scripted_engine)
    body = body_of(LIMIT) if path == CHAT else b'{"model":"tiny","prompt":"%b"}' % (b"a" * (LIMIT - 28))
    assert len(body) == LIMIT
    async with raw_client(door.port) as client:
        for size in (LIMIT - 1, LIMIT):
            sent = body if size == LIMIT else body.replace(b"aa", b"a", 1)
            assert (await client.ask(call(door, sent, path=path))).status == 200
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (sent[:9], sent[9:40_000], sent[40_000:]))
            assert (await client.ask(head(door, CHUNKED, path=path) + chunks + b"0\r\n\r\n")).status == 200
            assert [received.body for received in scripted_engine.requests[-2:]] == [sent, sent]


async def test_pictures_of_megabytes_pass_by_default(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        for size in (2**20 + 1, 20 * 2**20):
            assert (await client.ask(call(door, body_of(size)))).status == 200
            assert len(scripted_engine.requests[-1].body) == size
        reply = await client.ask(head(door, f"Content-Length: {20 * 2**20 + 1}"))
        assert "20971520 bytes" in error_of(reply, 400, "request_too_large", BAD_REQUEST)


@pytest.mark.parametrize("size", [LIMIT + 1, 2 * LIMIT, 10 * 2**30, 2**63 - 1])
async def test_a_body_declared_too_large_is_refused_before_it_comes(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, size: int
) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        reply = await client.ask(head(door, f"Content-Length: {size}"))
        error_of(reply, 400, "request_too_large", BAD_REQUEST)
        assert reply.headers["Connection"] == "close"
    await nothing_happened(door, scripted_engine)


async def test_a_body_too_large_that_came_is_refused_and_the_connection_ends(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, body_of(LIMIT + 1)) + call(door))
        error_of(reply, 400, "request_too_large", BAD_REQUEST)
        assert await client.rest() == b""
    await nothing_happened(door, scripted_engine)


async def test_an_upload_without_a_length_is_stopped_at_the_limit(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    chunk = b"4000\r\n" + b"a" * 0x4000 + b"\r\n"
    async with raw_client(door.port) as client:
        await client.send(head(door, CHUNKED) + chunk * 4)
        answer = asyncio.create_task(client.answer())
        for _ in range(50):  # turns of the loop that we share: more than an answer would take
            await asyncio.sleep(0)
        assert not answer.done()
        await client.send(b"1\r\na\r\n")
        error_of(await answer, 400, "request_too_large", BAD_REQUEST)
        await client.send(b"0\r\n\r\n" + call(door))
        assert await client.rest() == b""
    await nothing_happened(door, scripted_engine)


@pytest.mark.parametrize("sent", [b"", BODY[:10], BODY[:-1]])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_body_that_does_not_come_in_time_is_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, sent: bytes, chunked: bool
) -> None:
    door = await opened(open_door, scripted_engine, body_timeout="100ms")
    framed = b"%x\r\n%b\r\n" % (len(sent), sent) if sent else b""
    data = head(door, CHUNKED) + framed if chunked else head(door, f"Content-Length: {len(BODY)}") + sent
    async with raw_client(door.port) as client:
        reply = await client.ask(data)
        assert "0.1 s" in error_of(reply, 400, "invalid_json", BAD_REQUEST)
        assert reply.headers["Connection"] == "close"
    await nothing_happened(door, scripted_engine)


async def test_a_slow_body_that_comes_in_time_is_read(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        await client.send(head(door, f"Content-Length: {len(BODY)}"))
        for byte in BODY:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("rest", [b"zz\r\n", b"\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nab\r\n0\r\n\r\n"])
async def test_an_upload_whose_framing_breaks_is_refused_and_nothing_behind_it_runs(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, rest: bytes
) -> None:
    door = await opened(open_door, scripted_engine, body_timeout="200ms")
    async with raw_client(door.port) as client:
        await client.send(head(door, CHUNKED) + b"%x\r\n%b\r\n" % (len(BODY), BODY))
        reply = await client.ask(rest + call(door))
        error_of(reply, 400, reply.error["code"], BAD_REQUEST)
        assert reply.headers["Connection"] == "close"
    await nothing_happened(door, scripted_engine)


async def test_a_client_that_stops_in_its_upload_costs_nothing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await opened(open_door, scripted_engine)
    for left, leave in enumerate((RawClient.leave, RawClient.finish), 1):
        async with raw_client(door.port) as client:
            await client.send(head(door, f"Content-Length: {len(BODY)}") + BODY[:-1])
            leave(client)
            await door.logged(left)
    assert (await door.metrics()).total("gateway_requests_total", status="499", outcome="client_gone") == 2
    await nothing_happened(door, scripted_engine)


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/json;",
     'application/json; charset="utf-8"; x=y', "application/vnd.api+json"],
)  # fmt: skip
async def test_json_is_read_under_its_names(open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: str) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        assert (await client.ask(call(door, kind=kind))).status == 200


@pytest.mark.parametrize(
    "kind",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp",
     "application/json; charset=utf-16", "text/json", "*/*", "application/json, text/plain"],
)  # fmt: skip
async def test_other_kinds_of_body_are_refused_and_the_connection_serves_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, kind: str
) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        error_of(await client.ask(call(door, kind=kind)), 400, "unsupported_media_type", BAD_REQUEST)
        assert scripted_engine.requests == []
        assert (await client.ask(call(door))).status == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, identity", "x"])
async def test_compressed_bodies_are_refused_unread(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, coding: str
) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, gzip.compress(BODY), f"Content-Encoding: {coding}"))
        error_of(reply, 400, "unsupported_media_type", BAD_REQUEST)
        assert (await client.ask(call(door, BODY, "Content-Encoding: identity"))).status == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b" ", "invalid_json"),
        (b"null", "invalid_value"),
        (b"[]", "invalid_value"),
        (b'"x"', "invalid_value"),
        (b"1e999", "invalid_value"),
        (BODY[:-1], "invalid_json"),
        (BODY + b"x", "invalid_json"),
        (BODY * 2, "invalid_json"),
        (b"[" * 60_000, "invalid_json"),
        (b'{"a":' + b"9" * 5000 + b"}", "invalid_json"),
        (b"\xef\xbb\xbf" + BODY, "invalid_json"),
        (BODY.decode().encode("utf-16"), "invalid_json"),
        (BODY.decode().encode("utf-32-le"), "invalid_json"),
        (BODY.replace(b"Hi", b"\xff"), "invalid_json"),
        (BODY.replace(b'"Hi"', b"NaN"), "invalid_json"),
        (BODY[:-1] + b',"model":"other"}', "invalid_json"),
        (BODY[:-1] + b',"\\u006dodel":"other"}', "invalid_json"),
        (b"model=tiny&prompt=Hi", "invalid_json"),
        (BODY.replace(b'"tiny"', b'""'), "invalid_value"),
    ],
)
async def test_bodies_that_are_no_call_are_refused_and_the_connection_serves_on(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, body: bytes, code: str
) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, body))
        error_of(reply, 400, code, BAD_REQUEST, param=reply.error.get("param"))
        assert len(reply.body) < 600
        assert scripted_engine.requests == []
        assert (await client.ask(call(door))).headers["x-ratelimit-remaining-requests"] == "999"


async def test_a_strangers_body_is_not_waited_for(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await opened(open_door, scripted_engine)
    async with raw_client(door.port) as client:
        reply = await client.ask(head(door, "Content-Length: 60", token="x"))
        assert reply.status == 401
        again = await client.ask(BODY + call(door))
        assert again.status == 200
    assert len(scripted_engine.requests) == 1
