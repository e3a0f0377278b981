"""One issuer's keys, kept fresh: key id and algorithm in, key out. The only state is the last key set that was good.

A token whose key is known never waits. At most one fetch runs at a time. While the issuer is down, its last keys stay.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from gateway import config
from gateway.clock import Clock
from gateway.errors import IdentityUnavailable
from gateway.identity.keys import Key, Keys, KeySetUnusable
from gateway.identity.refused import TokenRefused
from gateway.identity.sources import Source

# Both requests of a discovery together. Callers with an unknown key wait this long at most.
FETCH_TIMEOUT_S = 5.0

Observe = Callable[[str, str], None]
"""Told the issuer and the result, `ok` or `failed`, of every fetch."""

_log = logging.getLogger(__name__)


class KeySet:
    """The key set of one issuer.

    `keys` is None until a first fetch succeeds, and is the same object for as long as the issuer publishes the same
    keys. `start` begins the background refresh; without it keys are fetched only when a token asks for an unknown one.
    """

    def __init__(
        self,
        issuer: config.Issuer,
        source: Source,
        *,
        clock: Clock,
        observe: Observe,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self.keys: Keys | None = None
        self._issuer = issuer
        self._source = source
        self._clock = clock
        self._observe = observe
        self._timeout_s = timeout_s
        self._attempted_at = -math.inf
        self._due_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._freshening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Fetch now, and again whenever the keys have aged `refresh`, until `close`."""
        self._freshening = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        """Cancel and await everything that `start` and `find` began."""
        tasks = [task for task in (self._freshening, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, key_id: str | None, algorithm: str) -> Key:
        """Return the key that verifies a token of this `kid` and `alg`; fetch again if it is unknown.

        Raises:
            TokenRefused: the issuer has no such key, as far as we could learn within `cooldown`.
            IdentityUnavailable: no key set could be had yet.
        """
        key = self._find(key_id, algorithm)
        if key is None and self._may_fetch():
            # `wait`, because a caller that is cancelled must not cancel the fetch for the others.
            await asyncio.wait([self._fetch_once()])
            key = self._find(key_id, algorithm)
        if key is not None:
            return key
        if self.keys is None:
            raise IdentityUnavailable(
                "The keys of the token's issuer could not be had yet. Try again.",
                retry_after_s=self._attempted_at + self._issuer.cooldown - self._clock.monotonic(),
            )
        raise TokenRefused("key")

    def _find(self, key_id: str | None, algorithm: str) -> Key | None:
        return None if self.keys is None else self.keys.find(key_id, algorithm)

    def _may_fetch(self) -> bool:
        """Whether a fetch runs that can be joined, or enough time has passed since the last began, however it ended."""
        running = self._fetching is not None and not self._fetching.done()
        return running or self._clock.monotonic() - self._attempted_at >= self._issuer.cooldown

    def _fetch_once(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._attempted_at = self._clock.monotonic()
            self._due_at = self._attempted_at + self._issuer.cooldown
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                document = await self._source()
            keys = Keys.parse(document)
        except (KeySetUnusable, TimeoutError) as error:
            reason = error if isinstance(error, KeySetUnusable) else f"no answer within {self._timeout_s:g} s"
            kept = len(self.keys.usable) if self.keys else 0
            _log.warning("key set of %s: %s; %d keys kept", self._issuer.issuer, reason, kept)
            self._observe(self._issuer.issuer, "failed")
            return
        if keys != self.keys:
            _log.info("key set of %s: %d usable keys", self._issuer.issuer, len(keys.usable))
            self.keys = keys
        self._due_at = self._attempted_at + self._issuer.refresh
        self._observe(self._issuer.issuer, "ok")

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.wait([self._fetch_once()])
            # A date, not a state: fetches for unknown keys move it on.
            while (wait_s := self._due_at - self._clock.monotonic()) > 0:  # noqa: ASYNC110 see above
                await asyncio.sleep(wait_s)
