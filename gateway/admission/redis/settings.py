"""Settings in the limit store: one hash, so one slot of a cluster, on connections of its own.

No call waits behind it. Its field `version` is written in the step that changes any other.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from gateway.admission.redis.client import FAILURES, client_of, overwritten
from gateway.admission.settings.settings import NEVER, Change, Kept
from gateway.admission.store import StoreUnavailable
from gateway.config import store_url

# How long the server may take for each command, and to be connected to.
_WITHIN_S = 1.0

# Once more on a new connection, where an idle one was closed: all commands are harmless to repeat.
_TIMES_SENT = 2

_VERSION = "version"

_Reply = TypeVar("_Reply")


@dataclass(slots=True, eq=False)
class _Shared:
    """A client, and how many questions are on it: it is closed when others are to ask another and the last has ended.

    To close it under a question would cost that question its connection too, or leave open the one it makes then.
    """

    client: Redis
    asking: int = 0

    async def close(self) -> None:
        """Hang up. A server that hangs may not let it do so well."""
        with suppress(*FAILURES):
            await self.client.aclose()


class RedisSettings:
    """A `Settings` in the store at `url`, under the key `gw:{<name>}:settings`, which never expires."""

    def __init__(self, url: str, name: str) -> None:
        self._url = store_url.parse(url)
        self._key = f"gw:{{{name}}}:settings"
        self._shared: _Shared | None = None
        self._turn = asyncio.Lock()  # whoever comes while one finds the server takes what that one found
        self._script = resources.files("gateway.admission.redis").joinpath("settings.lua").read_text(encoding="utf-8")
        self._sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()

    async def version(self) -> bytes:
        """Return the version of what is kept.

        Raises:
            StoreUnavailable: it cannot be read. Its cause says why.
        """
        version = await self._ask(lambda server: _unless_overwritten(server.hget(self._key, _VERSION), None))
        return version if isinstance(version, bytes) else NEVER

    async def read(self) -> Kept:
        """Return all that is kept.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        nothing: dict[bytes | str, bytes | str] = {}
        fields = await self._ask(lambda server: _unless_overwritten(server.hgetall(self._key), nothing))
        # The library's types allow for a client that decodes replies; this one does not.
        pairs = [
            (name, value) for name, value in fields.items() if isinstance(name, bytes) and isinstance(value, bytes)
        ]
        entries = {name.decode("utf-8", "backslashreplace"): value for name, value in pairs}
        return Kept(entries.pop(_VERSION, NEVER), entries)

    async def change(self, changes: Sequence[Change]) -> None:
        """Make `changes`, in one step.

        Raises:
            StoreUnavailable: nobody knows whether they were made.
        """
        await self._write(_new_id(), b"", changes)

    async def restore(self, kept: Kept) -> None:
        """Write back `kept`, unless another gateway has. What is there already stays.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        changes = [Change(name, value) for name, value in kept.entries.items()]
        await self._write(kept.version, _new_id(), changes)

    async def close(self) -> None:
        """Disconnect, when what is being asked has been answered."""
        shared, self._shared = self._shared, None
        if shared is not None and not shared.asking:
            await shared.close()

    async def _write(self, version: bytes, merged: bytes, changes: Sequence[Change]) -> None:
        words: list[bytes | str | int] = [version, merged]
        for change in changes:
            words += change.name, change.value or b"", change.before or b""
        await self._ask(lambda server: self._run(server, words))

    async def _run(self, server: Redis, words: Sequence[bytes | str | int]) -> None:
        try:
            await server.evalsha(self._sha, 1, self._key, *words)
        except NoScriptError:
            await server.script_load(self._script)
            await server.evalsha(self._sha, 1, self._key, *words)

    async def _ask(self, question: Callable[[Redis], Awaitable[_Reply]]) -> _Reply:
        """Return the server's reply, on a connection that there is or, after a failure, on a new one."""
        sent = 0
        while True:
            try:
                async with self._server() as server:
                    return await question(server)
            except FAILURES as error:
                sent += 1
                if sent == _TIMES_SENT:
                    raise StoreUnavailable(sent=True) from error

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[Redis]:
        """Lend the client to one question. Where that fails, who comes next gets another."""
        async with self._turn:
            if self._shared is None:
                self._shared = _Shared(await client_of(self._key, self._url, within_s=_WITHIN_S))
            shared = self._shared
        shared.asking += 1
        try:
            yield shared.client
        except FAILURES:
            if shared is self._shared:
                self._shared = None
            raise
        finally:
            shared.asking -= 1
            if shared is not self._shared and not shared.asking:
                await shared.close()


async def _unless_overwritten(reply: Awaitable[_Reply], nothing: _Reply) -> _Reply:
    """Return a reply, or `nothing` where the key holds something else, as if it were not there."""
    try:
        return await reply
    except ResponseError as error:
        if not overwritten(error):
            raise
        return nothing


def _new_id() -> bytes:
    return os.urandom(16).hex().encode()
