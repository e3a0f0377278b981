"""One connection to a Redis-protocol server: packed commands in, one reply each out, in order.

redis-py connects, authenticates and reads; commands come packed, because its own packing costs more than all the rest
(measured: 28 us a command against 5 for the whole exchange).
"""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.admission.patience import Patience
from gateway.admission.scripts import Script, write_nothing


class LinkFailed(Exception):
    """The server is not there, cannot serve, or did not answer in time. When `sent`, it may have done all the same."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Link:
    """A connection that is made when it is needed, and made anew after a failure."""

    def __init__(self, url: str, scripts: Sequence[Script]) -> None:
        # Repeating and time limits are ours: redis-py would charge twice (redis-py#261) and hold a call for seconds.
        pool = ConnectionPool.from_url(
            url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_keepalive=True
        )
        self._connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
        self._load = [script.load() for script in scripts]
        self._try = [*self._load, write_nothing()]
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
        await self._connection.disconnect(nowait=True)

    async def _known(self, commands: Sequence[bytes]) -> list[Any]:
        replies = await self._again(commands)
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
        if not self._connection.is_connected:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        self._sent = True
        await self._connection.send_packed_command(commands)
        return [await self._reply() for _ in commands]

    async def _reply(self) -> object:
        """Return a reply, or the error that concerns its command alone; one that concerns the server is raised."""
        try:
            return await self._connection.read_response(disable_decoding=True)
        except NoScriptError as error:
            return error
        except ResponseError as error:
            if error.status_code == "ERR":
                return error
            raise  # OOM, READONLY, MISCONF, NOPERM, …
