"""One connection to a Redis-protocol server: packed commands out, all their replies to whoever sent them.

Carries one exchange at a time; it never repeats and never times out. Replies are handed over inside the read that
brought the last of them: streams and tasks between the socket and the parser cost more than all else of an exchange.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import hiredis

# What begins an error that concerns one command alone, and of a node of a cluster: that it is to go elsewhere.
ALONE = ("ERR ",)
# Where a script meets one that concerns the server: Redis 6 puts it behind the script's own, and all do that with ACLs.
_IN_SCRIPT = ("ERR Error running script", "ERR ACL failure in script")
_OF_SERVER = (
    "-OOM ",
    "-READONLY ",
    "-MISCONF ",
    "-NOREPLICAS ",
    "-LOADING ",
    "-NOPERM ",
    "ACL failure",
    "can't run this",
)
_ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN ")
ALONE_IN_CLUSTER = (*ALONE, *_ELSEWHERE)

# What the parser returns when it needs more bytes; equal to no reply.
_NO_MORE = object()


class ServerFailed(Exception):
    """The connection is lost, or the server cannot serve: OOM, READONLY, NOPERM, and NOSCRIPT, which loading mends."""


class CommandRefused(Exception):
    """An error that concerns one command alone. Stands where its reply would."""


class Connection(asyncio.Protocol):
    """A connection that is used until it fails, and then never again.

    `history` names the writes that its server knows, and `copied` says whether it has or had replicas: one that
    takes its place may know fewer. `lost` is called when the connection fails while nobody waits.
    """

    def __init__(self, alone: tuple[str, ...] = ALONE) -> None:
        self.closed = False
        self.history = ""
        self.copied = False
        self.lost: Callable[[], None] | None = None
        self._alone = alone
        self._transport: asyncio.Transport | None = None
        self._errors: list[CommandRefused] = []  # among the replies
        self._parser = hiredis.Reader(replyError=partial(_noted, self._errors), notEnoughData=_NO_MORE)
        self._replies: list[Any] = []
        self._expected = 0
        self._then: Callable[[list[Any] | ServerFailed], None] | None = None

    def exchange(self, commands: Sequence[bytes], then: Callable[[list[Any] | ServerFailed], None]) -> None:
        """Send `commands`, and call `then` with their replies in order, or with why there are none."""
        assert self._transport is not None
        self._expected, self._then = len(commands), then
        self._transport.write(b"".join(commands))

    def give_up(self, reason: str) -> None:
        """Hang up. Whoever waits hears why."""
        self._fail(reason)

    def abort(self) -> None:
        """Hang up. Whoever waits hears no more."""
        self.closed, self._then = True, None
        if self._transport is not None:
            self._transport.abort()

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by class

    def data_received(self, data: bytes) -> None:
        """Parse one read, which may end the exchange."""
        try:
            self._parser.feed(data)
            self._replies.extend(iter(self._parser.gets, _NO_MORE))
        except hiredis.ProtocolError as error:
            self._fail(str(error))
            return
        if len(self._replies) < self._expected:
            return
        if self._errors and (reason := _of_server(self._errors, self._alone)):
            self._fail(reason)
        elif self._then is None or len(self._replies) > self._expected:  # nor is it the reply to what is asked next
            self._fail(f"a reply that nobody asked for: {self._replies[-1]}")
        else:
            replies, then = self._replies, self._then
            self._replies, self._expected, self._then = [], 0, None
            then(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange under way, if any."""
        self._fail(str(next(iter(self._errors), exc) or "the server closed the connection"))

    def _fail(self, reason: str) -> None:
        then, lost = self._then, None if self.closed else self.lost
        self.abort()
        if then is not None:
            then(ServerFailed(reason))
        elif lost is not None:
            lost()


def is_elsewhere(error: CommandRefused) -> bool:
    """Whether a node says that it has not the command's keys, or not all of them now."""
    return str(error).startswith(_ELSEWHERE)


async def replies(connection: Connection, commands: Sequence[bytes]) -> list[Any]:
    """Exchange `commands` for replies, and wait for them.

    Raises:
        ServerFailed: there are none.
    """
    came: asyncio.Queue[list[Any] | ServerFailed] = asyncio.Queue()
    connection.exchange(commands, came.put_nowait)
    outcome = await came.get()
    if isinstance(outcome, ServerFailed):
        raise outcome
    return outcome


def _noted(errors: list[CommandRefused], message: str) -> CommandRefused:
    """Return the error that a reply tells, and note it: few replies are one, and no others are looked through."""
    errors.append(CommandRefused(message))
    return errors[-1]


def _of_server(errors: list[CommandRefused], alone: tuple[str, ...]) -> str | None:
    """Return the first of `errors` that concerns the server; forget the others."""
    reason = next((text for text in map(str, errors) if not text.startswith(alone) or _met_in_script(text)), None)
    errors.clear()
    return reason


def _met_in_script(text: str) -> bool:
    return text.startswith(_IN_SCRIPT) and any(sign in text for sign in _OF_SERVER)
