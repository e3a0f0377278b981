"""The master that sentinels name: asked for whenever a connection is needed, and watched while there is one.

Of the sentinels that answer, the one that knows the latest failover is believed: one that was cut off may still name
the master of yesterday.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from gateway import background
from gateway.admission.redis.answers import ANSWER_WITHIN_S, answers
from gateway.admission.redis.command import pack
from gateway.admission.redis.connection import CommandRefused, Connection, ServerFailed, replies
from gateway.admission.redis.scripts import Prepared
from gateway.admission.redis.server import Master, Server
from gateway.config.store_url import Address, StoreUrl

log = logging.getLogger(__name__)

# A master that is frozen takes connections and says nothing; another one may have been named meanwhile.
_CONNECT_WITHIN_S = 1.0

# A master that was cut off from the sentinels goes on taking writes, which are lost. It is left within this time.
_WATCH_EVERY_S = 1.0


class Sentinels:
    """Connects to the master. Sentinels and servers are those that `url` names."""

    def __init__(self, url: StoreUrl, scripts: Sequence[Prepared]) -> None:
        self._url = url
        self._scripts = scripts
        self._sentinels = [_Sentinel(url, place) for place in url.places]
        self._watching: asyncio.Task[None] | None = None

    async def connect(self, *, within_s: float) -> Connection:
        """Return a connection to the master.

        Raises:
            OSError: no sentinel, or not the master, can be reached in time.
            ServerFailed: no sentinel knows the master, or it cannot serve.
        """
        await self._watch_no_more()
        async with asyncio.timeout(within_s):
            place = await self.master()
            master = Master(Server(self._url.server(place), self._scripts))
            connection = await master.connect(within_s=_CONNECT_WITHIN_S)
        self._watching = background.begin(partial(self._watch, connection, place), name="sentinel watch")
        return connection

    async def close(self) -> None:
        """Stop watching, and leave the sentinels."""
        await self._watch_no_more()
        for sentinel in self._sentinels:
            sentinel.close()

    async def master(self) -> Address:
        """Return where the master is.

        Raises:
            OSError: no sentinel answers.
            ServerFailed: none knows it.
        """
        return max(await answers([sentinel.master() for sentinel in self._sentinels]))[1]

    async def _watch_no_more(self) -> None:
        await background.end(self._watching)
        self._watching = None

    async def _watch(self, connection: Connection, place: Address) -> None:
        """Leave a master when the sentinels name another, which no error on its connection would tell."""
        while not connection.closed:
            await asyncio.sleep(_WATCH_EVERY_S)
            try:
                now = await self.master()
            except (OSError, ServerFailed) as failure:
                log.debug("the sentinels do not answer: %s", failure)
                continue
            if now != place:
                connection.give_up(f"the sentinels name another master, {now[0]}:{now[1]}")


class _Sentinel:
    """One sentinel, and the connection to it."""

    def __init__(self, url: StoreUrl, place: Address) -> None:
        self._server = Server(url.sentinel(place), (), last=lambda: ())
        self._name = url.master
        self._ask = [
            pack(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.master]),
            pack(["SENTINEL", "MASTER", url.master]),
        ]
        self._connection: Connection | None = None

    async def master(self) -> tuple[int, Address]:
        """Return the number of the last failover that it knows, and where the master is.

        Raises:
            OSError: it does not answer.
            ServerFailed: it does not know the master.
        """
        connection, self._connection = self._connection, None  # for one question at a time
        if connection is None or connection.closed:
            connection = await self._server.connect(within_s=ANSWER_WITHIN_S)
        with ExitStack() as unless_kept:
            unless_kept.callback(connection.abort)
            place, facts = await replies(connection, self._ask)
            if self._connection is None:
                self._connection = connection
                unless_kept.pop_all()
        if not place or isinstance(facts, CommandRefused):
            raise ServerFailed(f"a sentinel knows no master {self._name}: {facts}")
        return _epoch(facts), (place[0].decode(), int(place[1]))

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.abort()


def _epoch(facts: Sequence[Any]) -> int:
    named = dict(zip(facts[::2], facts[1::2], strict=True))
    return int(named.get(b"config-epoch", 0))
