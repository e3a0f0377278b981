"""Requests on raw sockets: what is ambiguous is refused and its connection closed, what is not works as HTTP says."""

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.client.head import MAX_HEAD_BYTES
from gateway.identity.header import MAX_FIELD_BYTES
from tests.deadlines import DEADLINE_S, PROMPTLY_S
from tests.doors import CHAT, Door, OpenDoor, Reply
from tests.engines import ScriptedEngine
from tests.envelope import BAD_REQUEST, error_of
from tests.nginx import nginx_before
from tests.raw_client import raw_client
from tests.transcripts import transcript

BODY = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}'
STREAMED = BODY[:-1] + b',"stream":true}'
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


LINE = b"POST %b HTTP/1.1" % CHAT.encode()


def call(
    door: Door, *fields: bytes, body: bytes = BODY, line: bytes = LINE, host: bytes = b"Host: a", token: bytes = b""
) -> bytes:
    """Return a call with these fields, framing included, and a good token unless another is given."""
    lines = [line, *([host] if host else []), b"Content-Type: application/json"]
    lines += [b"Authorization: Bearer " + (token or door.token().encode()), *fields, b"", b""]
    return b"\r\n".join(lines) + body


def of(size: bytes, data: bytes = BODY) -> bytes:
    return size + b"\r\n" + data + b"\r\n0\r\n\r\n"


SIZE = b"%x" % len(BODY)
AMBIGUOUS: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "length and chunked": ((LENGTH, CHUNKED), CHUNKS),
    "chunked and length": ((CHUNKED, LENGTH), CHUNKS),
    "two lengths": ((LENGTH, b"Content-Length: 3"), BODY),
    "a length twice": ((LENGTH, LENGTH), BODY),
    "a list of lengths": ((LENGTH + b", %d" % len(BODY),), BODY),
    **{
        f"length {value!r}": ((b"Content-Length: " + value,), BODY)
        for value in (b"+60", b"-1", b"0x3c", b"60.0", b"6e1", b"60;", b"", b"\xb2", b"9" * 30, b"1 1")
    },
    **{
        f"coding {value!r}": ((b"Transfer-Encoding: " + value,), CHUNKS)
        for value in (
            b"xchunked",
            b"chunked, identity",
            b"identity, chunked",
            b"chunked, chunked",
            b"identity",
            b"chunked\x0b",
            b"gzip",
            b"",
        )
    },
    "length with a space before its colon": ((b"Content-Length : 5",), BODY),
    "coding with a space before its colon": ((LENGTH, b"Transfer-Encoding : chunked"), BODY),
    "a bare LF in a field": ((b"X-A: b\nTransfer-Encoding: chunked", LENGTH), BODY),
    "a bare CR in a field": ((b"X-A: b\rTransfer-Encoding: chunked", LENGTH), BODY),
    "a NUL in a field": ((b"X-A: b\0c", LENGTH), BODY),
    "a folded field": ((LENGTH, b"X-A: b\r\n Content-Length: 3"), BODY),
    "a folded coding": ((LENGTH, b"Transfer-Encoding:\r\n chunked"), BODY),
    "a field without a colon": ((b"X-A", LENGTH), BODY),
    "a field without a name": ((b": b", LENGTH), BODY),
    "a name beyond ASCII": (("X-\u00e9: b".encode(), LENGTH), BODY),
    "a second host": ((b"Host: b", LENGTH), BODY),
    "an encoding before the chunks": ((b"Transfer-Encoding: gzip, chunked",), CHUNKS),
    "two codings": ((CHUNKED, CHUNKED), CHUNKS),
}
BROKEN_CHUNKS: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "chunk size 0x": ((CHUNKED,), of(b"0x" + SIZE)),
    "chunk size +": ((CHUNKED,), of(b"+" + SIZE)),
    "chunk size -": ((CHUNKED,), of(b"-" + SIZE)),
    "chunk size after a space": ((CHUNKED,), of(b" " + SIZE)),
    "chunk size of 17 digits": ((CHUNKED,), of(b"1" + SIZE.zfill(16))),
    "chunk size too small": ((CHUNKED,), of(b"%x" % (len(BODY) - 5))),
    "chunk size too large": ((CHUNKED,), of(b"%x" % (len(BODY) + 5))),
    "no chunk size": ((CHUNKED,), of(b"")),
    "a bare LF after a chunk size": ((CHUNKED,), SIZE + b"\n" + BODY + b"\r\n0\r\n\r\n"),
    "a LF in a chunk extension": ((CHUNKED,), of(SIZE + b";a\nb")),
    "bare LFs around chunks": ((CHUNKED,), SIZE + b"\n" + BODY + b"\n0\n\n"),
}


async def refused(door: Door, data: bytes, *, code: str = "invalid_value") -> Reply:
    """Send, and check that one refusal comes and the connection ends with it."""
    async with raw_client(door.port) as client:
        reply = await client.ask(data)
        assert reply.headers["Connection"] == "close"
        assert await client.rest() == b""
    error_of(reply, 400, code, BAD_REQUEST)
    return reply


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_ambiguous_framing_is_refused_and_what_hides_behind_it_never_runs(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    door = await open_door(scripted_engine.url)
    fields, body = AMBIGUOUS[name]
    hidden = call(door, LENGTH, body=BODY)
    await refused(door, call(door, *fields, body=body + hidden))
    assert scripted_engine.requests == []
    assert (await door.metrics()).total("gateway_requests_total", endpoint="chat") == 0


@pytest.mark.parametrize("name", BROKEN_CHUNKS)
async def test_broken_chunks_are_refused_at_once_and_what_hides_behind_them_never_runs(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    door = await open_door(scripted_engine.url)
    fields, body = BROKEN_CHUNKS[name]
    hidden = call(door, LENGTH, body=BODY)
    await refused(door, call(door, *fields, body=body + hidden), code="invalid_json")
    async with raw_client(door.port) as client:  # the same where the head came before
        await client.send(call(door, *fields, body=b""))
        await door.until(lambda s: s.total("gateway_requests_total") == 1)
        error_of(await client.ask(body + hidden), 400, "invalid_json", BAD_REQUEST)
        assert await client.rest() == b""
    assert scripted_engine.requests == []
    assert (await door.metrics()).total("gateway_requests_total", endpoint="chat") == 2


async def test_a_client_that_sends_on_behind_broken_framing_gets_its_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    """A closed socket that is still sent to is reset, and a reset takes back what its client has not read yet."""
    door = await open_door(scripted_engine.url)
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", door.port)) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, call(door, CHUNKED, body=of(b"0x" + SIZE)))
        await door.until(lambda s: s.total("gateway_requests_total", status="400") == 1)
        for _ in range(64):
            await loop.sock_sendall(client, b"a" * 2**16)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        async with asyncio.timeout(DEADLINE_S):
            while piece := await loop.sock_recv(client, 2**16):
                answer += piece
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "line",
    [b"POST /v1/chat completions HTTP/1.1", b"GET", b"GET /\r", b" GET / HTTP/1.1",
     b"POST\t/v1/chat/completions\tHTTP/1.1", b"post /v1/chat/completions HTTP/1.1",
     b"POST /v1/chat/completions HTTP/1.2", b"POST /v1/chat/completions HTTX/1.1", b"PRI * HTTP/2.0",
     b"P@ST / HTTP/1.1", b"", b"\x16\x03\x01\x02\x00\x01",
     b"POST /\xff HTTP/1.1 x", b"POST / HTTP/1.1\x00"],
)  # fmt: skip
async def test_a_line_that_is_no_request_is_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, line: bytes
) -> None:
    door = await open_door(scripted_engine.url)
    await refused(door, call(door, LENGTH, line=line or b" "))
    assert scripted_engine.requests == []


async def test_a_request_without_a_host_is_refused(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    await refused(door, call(door, LENGTH, host=b""))


@pytest.mark.parametrize(
    "fields",
    [(b"X-A: " + b"a" * (MAX_FIELD_BYTES + 1),), (b"X" * (MAX_FIELD_BYTES + 1) + b": a",), (b"X-A: a",) * 200],
    ids=["value", "name", "count"],
)
async def test_a_head_too_large_is_refused(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, fields: tuple[bytes, ...]
) -> None:
    door = await open_door(scripted_engine.url)
    reply = await refused(door, call(door, LENGTH, *fields))
    assert b"a" * 8 not in reply.body
    await refused(door, call(door, LENGTH, line=b"POST /%b HTTP/1.1" % (b"a" * 10_000)))


async def test_a_token_of_many_kilobytes_is_read(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        for size in (9 * 1024, 16 * 1024):
            error_of(
                await client.ask(call(door, LENGTH, token=b"a" * size)), 401, "invalid_token", "authentication_error"
            )


UNAMBIGUOUS: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "length": ((LENGTH,), BODY),
    "length with leading zeros": ((LENGTH.replace(b": ", b": 00"),), BODY),
    "chunked": ((CHUNKED,), CHUNKS),
    "chunked in capitals": ((CHUNKED.upper(),), CHUNKS),
    "chunked behind blanks": ((b"Transfer-Encoding: \t  chunked",), CHUNKS),
    "small chunks": ((CHUNKED,), b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "chunk extensions": ((CHUNKED,), of(SIZE + b';a="b"')),
    "trailers": ((CHUNKED,), CHUNKS[:-2] + b"X-A: b\r\n\r\n"),
    "an upgrade that is not taken": ((LENGTH, b"Connection: Upgrade", b"Upgrade: websocket"), BODY),
    "an upgrade to HTTP/2": ((LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"), BODY),
    "an expectation met at once": ((LENGTH, b"Expect: 100-continue"), BODY),
    "bytes beyond ASCII in a field": ((LENGTH, b"X-A: \xff\xfe"), BODY),
}


@pytest.mark.parametrize("name", UNAMBIGUOUS)
async def test_well_framed_calls_get_one_answer_each_and_reach_the_engine_with_one_framing(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, name: str
) -> None:
    door = await open_door(scripted_engine.url)
    fields, body = UNAMBIGUOUS[name]
    async with raw_client(door.port) as client:
        for _ in range(2):
            assert (await client.ask(call(door, *fields, body=body))).status == 200
    assert [received.body for received in scripted_engine.requests] == [BODY, BODY]
    for received in scripted_engine.requests:
        assert received.header("content-length") == str(len(BODY))
        names = sorted(name.lower() for name, _ in received.headers)
        assert names == ["content-length", "content-type", "host", "x-request-id"]


async def test_a_body_stays_a_body_under_a_get_and_under_an_upgrade(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    hidden = call(door, LENGTH)
    length = b"Content-Length: %d" % len(hidden)
    async with raw_client(door.port) as client:
        for line in (b"GET /v1/models HTTP/1.1", b"GET /nowhere HTTP/1.1", b"DELETE /v1/models HTTP/1.1"):
            reply = await client.ask(
                call(door, length, b"Connection: Upgrade", b"Upgrade: tcp", line=line, body=hidden)
            )
            assert reply.status in {200, 404, 405}
        upgrade = call(door, length, b"Connection: Upgrade", b"Upgrade: websocket", body=hidden)
        error_of(await client.ask(upgrade), 400, "invalid_json", BAD_REQUEST)
        assert scripted_engine.requests == []
        assert (await client.ask(hidden)).status == 200


async def test_pipelined_calls_are_answered_in_their_order(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    streamed = call(door, b"Content-Length: %d" % len(STREAMED), body=STREAMED)
    missing = call(door, b"Content-Length: 0", line=b"GET /nowhere HTTP/1.1", body=b"")
    async with raw_client(door.port) as client:
        await client.send((call(door, LENGTH) + streamed + missing) * 20)
        for _ in range(20):
            replies = [await client.answer() for _ in range(3)]
            assert [reply.status for reply in replies] == [200, 200, 404]
            assert replies[1].body.endswith(b"data: [DONE]\n\n")
    assert len(scripted_engine.requests) == 40


async def test_a_connection_serves_again_after_each_kind_of_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, pools={"main": {"attempts": 1}})
    good = call(door, LENGTH)
    async with raw_client(door.port) as client:
        for other, status in [
            (call(door, b"Content-Length: 1", body=b"{"), 400),
            (call(door, LENGTH, token=b"x"), 401),
            (good.replace(b"tiny", b"nope"), 404),
            (call(door, LENGTH, line=b"PUT /v1/chat/completions HTTP/1.1"), 405),
            (call(door, LENGTH, b"Content-Encoding: gzip"), 400),
            (call(door, b"Content-Length: 0", line=b"GET /v1/models HTTP/1.1", body=b""), 200),
        ]:
            assert (await client.ask(other)).status == status
            assert (await client.ask(good)).status == 200
        scripted_engine.answer(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n")
        assert (await client.ask(good)).status == 502
        assert (await client.ask(good)).status == 200


@pytest.mark.parametrize("keep", [False, True], ids=["close", "keep-alive"])
async def test_http_1_0_clients(open_door: OpenDoor, scripted_engine: ScriptedEngine, keep: bool) -> None:
    door = await open_door(scripted_engine.url)
    line = b"POST /v1/chat/completions HTTP/1.0"
    fields = (b"Connection: keep-alive",) if keep else ()
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, LENGTH, *fields, line=line))
        assert reply.status == 200
        assert reply.headers["Connection"] == ("keep-alive" if keep else "close")
        assert "Transfer-Encoding" not in reply.headers
        if not keep:
            assert await client.rest() == b""
            return
        reply = await client.ask(call(door, b"Content-Length: %d" % len(STREAMED), *fields, line=line, body=STREAMED))
        assert not {"Transfer-Encoding", "Content-Length"} & set(reply.headers)
        assert reply.headers["Connection"] == "close"
        assert reply.body == b"".join(transcript(" Hello", " world"))


async def test_a_client_that_asks_to_close_is_answered_and_closed(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        reply = await client.ask(call(door, LENGTH, b"Connection: close"))
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    expecting = call(door, LENGTH, b"Expect: 100-continue", body=b"")
    async with raw_client(door.port) as client:
        for _ in range(2):
            await client.send(expecting)
            assert (await client.answer(bodiless=True)).status == 100
            assert (await client.ask(BODY)).status == 200


async def test_a_client_that_is_refused_gets_no_leave_to_send_its_body(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url, server={"max_body": "32B"})
    expecting = call(door, LENGTH, b"Expect: 100-continue", body=b"")
    async with raw_client(door.port) as client:
        assert (await client.ask(call(door, LENGTH, b"Expect: 100-continue", body=b"", token=b"x"))).status == 401
        assert (await client.ask(BODY + expecting)).status == 400


async def test_http_1_0_knows_no_interim_answer(open_door: OpenDoor, scripted_engine: ScriptedEngine) -> None:
    door = await open_door(scripted_engine.url)
    line = b"POST /v1/chat/completions HTTP/1.0"
    async with raw_client(door.port) as client:
        await client.send(call(door, LENGTH, b"Expect: 100-continue", line=line, body=BODY[:5]))
        for _ in range(50):  # turns of the loop that we share: more than it takes to read the head and to answer it
            await asyncio.sleep(0)
        assert (await client.ask(BODY[5:])).status == 200


@pytest.mark.parametrize(("token", "status"), [(b"", b"400"), (b"x", b"401")], ids=["token", "no good token"])
@pytest.mark.parametrize(
    "piece", [SIZE + b";a=", CHUNKS[:-2] + b"X-A: ", CHUNKS[:-2]], ids=["extension", "value", "name"]
)
async def test_framing_that_does_not_end_is_given_up_before_it_takes_memory(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, piece: bytes, *, token: bytes, status: bytes
) -> None:
    door = await open_door(scripted_engine.url)
    async with raw_client(door.port) as client:
        await client.send(call(door, CHUNKED, body=piece, token=token))
        received = asyncio.create_task(client.rest())
        for _ in range(MAX_HEAD_BYTES // 2**12 + 1):
            for _ in range(20):  # turns of the loop that we share: more than it takes to read, to answer and to close
                await asyncio.sleep(0)
            if received.done():
                break
            await client.send(b"a" * 2**12)
        assert (await asyncio.wait_for(received, PROMPTLY_S)).startswith(b"HTTP/1.1 " + status)
    assert scripted_engine.requests == []


async def test_framing_in_many_pieces_may_be_more_than_a_head(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    door = await open_door(scripted_engine.url)
    extension = b";a=" + b"b" * 2**10
    async with raw_client(door.port) as client:
        await client.send(call(door, CHUNKED, body=b""))
        for byte in BODY + b" " * 20:
            await client.send(b"1" + extension)
            await asyncio.sleep(0)
            await client.send(b"\r\n%c\r\n" % byte)
            await asyncio.sleep(0)
        assert (await client.ask(b"0\r\n\r\n")).status == 200


@pytest.mark.parametrize("buffered", [True, False], ids=["whole bodies", "bodies as they come"])
async def test_behind_a_proxy_whose_clients_share_a_connection_each_gets_its_own_answer(
    open_door: OpenDoor, scripted_engine: ScriptedEngine, tmp_path: Path, *, buffered: bool
) -> None:
    door = await open_door(scripted_engine.url)
    hidden = call(door, b"Content-Length: 0", b"Connection: close", line=b"GET /v1/models/hidden HTTP/1.1", body=b"")
    answered = 0
    async with nginx_before(door.port, tmp_path, keep_alive=True, buffered=buffered) as port:
        for serial, (fields, body) in enumerate([*AMBIGUOUS.values(), *BROKEN_CHUNKS.values(), ((LENGTH,), BODY)]):
            async with raw_client(port) as client:
                await client.send(call(door, *fields, body=body + hidden))
                answered += (await client.rest()).count(b" 200 OK")
            own = b"GET /v1/models/of-%d HTTP/1.1" % serial
            async with raw_client(port) as client:
                reply = await client.ask(call(door, b"Content-Length: 0", line=own, body=b""))
            assert (reply.status, reply.error["code"]) == (404, "model_not_found")
            assert f"of-{serial}'" in reply.error["message"]
    assert len(scripted_engine.requests) == answered >= 1
    assert {received.body for received in scripted_engine.requests} == {BODY}
