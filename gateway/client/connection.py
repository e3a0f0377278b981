"""One client's connection: bytes in, requests out to a handler one at a time, each answered before the next begins.

Reads strictly (llhttp): what two readers could take for different requests is refused, and its connection ends.
"""

import asyncio
import math
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from gateway.client.answer import Answer
from gateway.client.head import MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES, ONCE, is_request, stand_in
from gateway.client.request import Request
from gateway.client.stall import Stall, waiting_for

if TYPE_CHECKING:
    from gateway.client.clients import Clients

# Requests that wait behind one that is being answered: more are left unread.
_MAX_WAITING = 32
# How long a client that was answered before it had sent all may go on sending before its connection is closed. What it
# sends meanwhile is dropped.
LINGER_S = 5.0
# What makes the transport ask whoever feeds it to pause has to reach it at once.
_AT_ONCE = 64 * 1024
# What the kernel takes of an answer beyond what is on its way: for a client that does not read it held 3.6 MB.
_UNSENT_BYTES = 64 * 1024

Handler = Callable[[Request], Awaitable[Answer]]


class Flow(Protocol):
    """Who feeds an answer, and must wait while its client cannot keep up."""

    def client_paused(self) -> None:
        """The client's transport holds as much as it should."""

    def client_resumed(self) -> None:
        """The client reads again."""


class ClientConnection(asyncio.Protocol):
    """A connection that belongs to `clients`, who say how its requests are answered and when time is up.

    `flow` feeds the current answer. `closing`: one that begins from now on is the last, and says so. `stalled`: it was
    cut, because the client took nothing of it for too long.
    """

    __deletable__ = ("_parser",)  # compiled too
    __slots__ = (
        "_arrival", "_clients", "_deaf", "_fields", "_head_bytes", "_head_fields", "_head_open", "_held", "_malformed",
        "_parser", "_receiving", "_since", "_stall", "_target", "_task", "_told", "_unsent", "_unsent_bytes",
        "_waiting", "_writable", "closing", "flow", "stalled", "transport", "writing_paused",
    )  # fmt: skip

    def __init__(self, clients: "Clients") -> None:
        self.transport: asyncio.Transport | None = None
        self.flow: Flow | None = None
        self.writing_paused = False
        self.closing = self.stalled = False
        self._clients = clients
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._told = self._head_bytes = self._head_fields = 0
        self._head_open = False
        self._since = clients.loop.time()  # of the state that a time limit holds for: idle, in a head, lingering
        self._receiving: Request | None = None  # whose body is being received
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None  # one for all its requests: making one takes longer than waking it
        self._arrival: asyncio.Future[None] | None = None  # that it waits for while no request is under way
        self._malformed = False  # what came behind the last request is not one
        self._deaf = False  # nothing that still comes matters
        self._held = False  # reading is paused
        self._writable: asyncio.Future[None] | None = None
        self._stall: Stall | None = None
        self._unsent: list[bytes] = []  # written in this turn of the loop
        self._unsent_bytes = 0

    def write(self, data: bytes) -> None:
        """Send `data`, with what else is sent in this turn of the loop; to a client that has gone, nothing."""
        if not self._unsent:
            self._clients.outbox.add(self)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand what was written over to the transport."""
        unsent = self._unsent
        if not unsent:
            return
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        self._unsent_bytes = 0
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self.flush()
        if self.transport is not None:
            self.transport.abort()

    @property
    def expecting(self) -> bool:
        """Whether a request may still come, and none is under way."""
        return self._idle and not self._deaf

    def check_time(self, now: float, *, idle_s: float, head_s: float, write_s: float) -> None:
        """Close where a limit has passed: of taking nothing, of lingering, of waiting for a head or for a request."""
        if self._stalled_s(now) >= write_s:
            self.stalled = True
            self.abort()
        elif self._deaf:
            if now >= self._since + LINGER_S and not (self.transport and self.transport.get_write_buffer_size()):
                self.abort()
        elif self._idle and now >= self._since + (head_s if self._head_open else idle_s):
            if self._head_open:
                self._refuse()
            else:
                self._close()

    def read_on(self) -> None:
        """Read again, if the client had to wait, and still nothing holds it back."""
        if self._held and self.transport is not None and not self._too_much():
            self._held = False
            self.transport.resume_reading()

    async def until_writable(self) -> None:
        """Wait until the client has taken most of what waits for it, where that is much."""
        if self.writing_paused:
            self._writable = self._clients.loop.create_future()
            await self._writable

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class
        peer = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices clients whose machine is gone
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._clients.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the base class's signature
        """End what is under way: the client has gone."""
        self.transport = None
        self._deaf = True
        self._waiting.clear()
        self._clients.discard(self)
        if self._task is not None:
            self._task.cancel()
        self._receiving = None
        del self._parser  # it calls us, and we it: nothing of a closed connection should wait for the collector

    def eof_received(self) -> bool:
        """Close with the client: who is done with sending is taken for gone, as clients that leave do just this.

        Left to itself the transport would first send all that it holds, and wait for a client that does not read.
        """
        if self.flow is not None:
            self.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Take one read apart, and begin with the request in it if none is under way."""
        if self._deaf or self._malformed:
            return
        told = self._told
        self._parse(data)
        # A field, a trailer or a chunk's extension that does not end is not told by the parser, which keeps it.
        if told == self._told and (self._head_open or self._receiving is not None):
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._give_up_reading()
        if self._idle:
            self._wake()
        if not self._held and self._too_much() and self.transport is not None:
            self._held = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """Called by the transport at its high-water mark."""
        self.writing_paused = True
        if self.flow is not None:
            self.flow.client_paused()

    def resume_writing(self) -> None:
        """Called by the transport at its low-water mark."""
        self.writing_paused = False
        self._stall = None
        if self.flow is not None:
            self.flow.client_resumed()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # From the parser.

    def on_message_begin(self) -> None:
        """Begin a head."""
        if self._receiving is not None:  # the stand-in for a head whose upgrade was declined
            return
        self._target = b""
        self._fields = {}
        self._told += 1
        self._head_bytes = self._head_fields = 0
        self._head_open = True
        if self._idle:
            self._since = self._clients.now

    def on_url(self, target: bytes) -> None:
        """Take a piece of the request's target."""
        if self._head_open:
            self._target += target
        if len(self._target) > MAX_TARGET_BYTES:
            raise ValueError("the target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head, or of a body's trailer, which nobody wants."""
        size = len(name) + len(value)
        self._head_bytes += size
        self._head_fields += 1
        if size > self._clients.max_field or self._head_bytes > MAX_HEAD_BYTES or self._head_fields > MAX_FIELDS:
            raise ValueError("the head is too large")
        if not self._head_open:
            return
        name = name.lower()
        if name in self._fields:
            if name in ONCE:
                raise ValueError("a field that must be one is several")
            value = self._fields[name] + b", " + value
        self._fields[name] = value.rstrip(b" \t")

    def on_headers_complete(self) -> None:
        """Make a request of the head."""
        if not self._head_open:
            return
        parser, fields = self._parser, self._fields
        self._head_open = False
        version = parser.get_http_version()
        if not is_request(version, fields):
            raise ValueError("not a request")
        request = self._receiving = Request(
            self,
            parser.get_method(),
            self._target,
            fields=fields,
            keep_alive=parser.should_keep_alive(),
            http_1_0=version == "1.0",
        )
        self._waiting.append(request)

    def on_body(self, data: bytes) -> None:
        """Hand the next bytes of a body to its request."""
        self._told += 1
        self._head_bytes = 0
        if self._receiving is not None:
            self._receiving.feed(data)

    def on_message_complete(self) -> None:
        """End the body. One behind a head that asks for an upgrade has yet to be read."""
        if self._receiving is not None and not self._parser.should_upgrade():
            self._receiving.end()
            self._receiving = None

    # Within.

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                rest = b""
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                self._decline_upgrade()
            except httptools.HttpParserError:
                self._give_up_reading()
                return

    def _decline_upgrade(self) -> None:
        """Go on in HTTP/1.1 behind a head that asks for another protocol (RFC 9110, 7.8).

        httptools leaves even the body to that: so another parser reads it, which is told only how the body is framed.
        Behind CONNECT nothing is ours to read.
        """
        if self._receiving is None:
            return
        if self._receiving.method == b"CONNECT":
            self._receiving.keep_alive = False
            self._receiving.end()
            self._receiving = None
            return
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(stand_in(self._receiving.fields))

    @property
    def _idle(self) -> bool:
        return self._task is None or self._arrival is not None

    def _wake(self) -> None:
        """Let the task take the next request; where garbage is next, refuse it."""
        if not self._waiting:
            if self._malformed:
                self._refuse()
        elif self._task is None:
            self._task = self._clients.loop.create_task(self._serve())
        elif self._arrival is not None:
            self._arrival.set_result(None)
            self._arrival = None

    async def _serve(self) -> None:
        """Answer requests for as long as there may be others, then close."""
        try:
            while await self._answer(self._waiting.popleft()):
                self._since = self._clients.loop.time()
                self.read_on()
                if self._waiting:
                    continue
                if self._malformed:
                    self._refuse()
                    return
                self._arrival = self._clients.loop.create_future()
                await self._arrival
        except BaseException:  # a defect, or the client has gone
            self._deaf = True
            self.abort()
            raise
        finally:
            self._task = None  # in a cycle all that its last call held would wait for the collector
        if self._malformed:
            self._linger()
        else:
            self._close()

    async def _answer(self, request: Request) -> bool:
        """Answer one request; whether the connection may carry another."""
        answer = await self._clients.handle(request)
        if not request.complete:
            await request.discard(timeout_s=LINGER_S)
        return answer.keep_alive and request.complete

    def _stalled_s(self, now: float) -> float:
        """For how long the client has taken nothing of what waits for it; while more is written, nobody can tell."""
        transport = self.transport
        told = self.writing_paused or self._idle or self._deaf
        if transport is None or not told or not transport.get_write_buffer_size():
            self._stall = None
            return 0.0
        waiting = waiting_for(transport)
        if self._stall is None:
            self._stall = Stall(waiting, now)
        return self._stall.lasted(waiting, now)

    def _give_up_reading(self) -> None:
        """What came is not HTTP: the requests before it are answered, and one whose body it is in gets no more."""
        self._malformed = True
        self._head_open = False
        if self._receiving is not None:
            self._receiving.end(broken=True)
            self._receiving = None

    def _too_much(self) -> bool:
        """Whether the client has to wait with what it still sends."""
        if len(self._waiting) >= _MAX_WAITING:
            return True
        return self._receiving is not None and self._receiving.held_back

    def _refuse(self) -> None:
        """Answer what is no request, or not all of one, and close."""
        self._clients.malformed(Request(self, b"", b"", fields={}, keep_alive=False))
        self._linger()

    def _linger(self) -> None:
        """Close once the client has done so: closing while it still sends could take the last answer from it."""
        self._deaf = True
        self._since = self._clients.now
        self._waiting.clear()
        self.flush()
        if self.transport is not None:
            self.transport.write_eof()
        self.read_on()

    def _close(self) -> None:
        """Close, once what was written is sent: however long that takes, as long as the client takes some of it."""
        self._deaf = True
        self._since = math.inf
        self.flush()
        if self.transport is not None:
            self.transport.close()
