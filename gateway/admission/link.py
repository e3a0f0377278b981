"""One connection to a Redis-protocol server: packed commands in, one reply each out, in order.

redis-py connects and authenticates. Commands come packed, and the replies of a pipeline are parsed all at once: its own
packing and reading, command by command, cost many times what the whole exchange does.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.admission.patience import Patience
from gateway.admission.scripts import Script, write_nothing

# More than the replies of one pipeline.
_READ_BYTES = 64 * 1024

# What the parser returns when it needs more bytes; equal to no reply.
_NO_MORE = object()


class LinkFailed(Exception):
    """The server is not there, cannot serve, or did not answer in time. When `sent`, it may have done all the same."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ServerCannot(RedisError):
    """An error that concerns the server, not one command: OOM, READONLY, MISCONF, NOPERM."""


class Link:
    """A connection that is made when it is needed, and made anew after a failure."""

    def __init__(self, url: str, scripts: Sequence[Script]) -> None:
        # Repeating and time limits are ours: redis-py would charge twice (redis-py#261) and hold a call for seconds.
        pool = ConnectionPool.from_url(
            url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_keepalive=True
        )
        self._connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._parser = hiredis.Reader()
        self._load = [script.load() for script in scripts]
        self._try = [*self._load, write_nothing()]
        self._errors: list[RedisError] = []  # among the replies of this pipeline
        self._sent = False

    async def open(self, *, within_s: float) -> None:
        """Connect, make the server know the scripts, and see that it takes writes: one out of memory may not.

        Raises:
            LinkFailed: it does not answer.
        """
        await self.exchange(self._try, within_s=within_s)

    async def exchange(self, commands: Sequence[bytes], *, within_s: float) -> list[Any]:
        """Send `commands`, which must be harmless to repeat, and return their replies.

        A connection that turns out to be closed is made anew once, within the same time. A script that the server does
        not know did not run: all are loaded, and those commands are sent again. An error that concerns one command
        alone stands in its place as a `ResponseError`.

        Raises:
            LinkFailed: some command has no reply.
        """
        self._sent = False
        answered = False
        try:
            async with Patience(within_s):
                replies = await self._known(commands)
            answered = True
        except (RedisError, OSError, TimeoutError) as error:
            raise LinkFailed(f"{type(error).__name__}: {error}", sent=self._sent) from error
        finally:
            if not answered:  # cancelled included: nobody may read the replies that are still to come
                await self.close()
        return replies

    async def close(self) -> None:
        """Drop the connection."""
        self._streams = None
        await self._connection.disconnect(nowait=True)

    async def _known(self, commands: Sequence[bytes]) -> list[Any]:
        replies = await self._again(commands)
        if not self._errors:
            return replies
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            await self._ask(self._load)
            for i, reply in zip(unknown, await self._ask([commands[i] for i in unknown]), strict=True):
                replies[i] = reply
        return replies

    async def _again(self, commands: Sequence[bytes]) -> list[Any]:
        try:
            return await self._ask(commands)
        except ConnectionLost:  # restarted or timed out by the server since it was last used
            return await self._ask(commands)

    async def _ask(self, commands: Sequence[bytes]) -> list[Any]:
        reader, writer = self._streams or await self._connect()
        self._sent = True
        self._errors = []
        writer.write(b"".join(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            try:
                data = await reader.read(_READ_BYTES)
            except OSError as error:
                await self.close()
                raise ConnectionLost(str(error)) from error
            if not data:
                await self.close()
                raise ConnectionLost("the server closed the connection")
            self._parser.feed(data)
            replies.extend(iter(self._parser.gets, _NO_MORE))
            for failure in self._errors:
                if isinstance(failure, ServerCannot):
                    raise failure
        return replies

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self._connection.connect()  # type: ignore[no-untyped-call]
        reader, writer = self._connection._reader, self._connection._writer  # noqa: SLF001 its own way in is the slow one
        assert reader is not None
        assert writer is not None
        self._streams, self._parser = (reader, writer), hiredis.Reader(replyError=self._error, notEnoughData=_NO_MORE)
        return self._streams

    def _error(self, message: str) -> RedisError:
        """Return the error that a reply tells, and remember that there was one."""
        word = message.partition(" ")[0]
        kind = NoScriptError if word == "NOSCRIPT" else ResponseError if word == "ERR" else ServerCannot
        self._errors.append(kind(message))
        return self._errors[-1]
