"""One issuer's keys, kept fresh: key id and algorithm in, key out. The only state is the last key set that was good.

A token whose key is known never waits. At most one fetch runs at a time. While the issuer is down, its last keys stay.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from gateway import background, config
from gateway.clock import Clock
from gateway.errors import IdentityUnavailable
from gateway.identity.keys import Key, Keys, KeySetUnusable
from gateway.identity.refused import TokenRefused
from gateway.identity.sources import Document, Source

# Both requests of a discovery together. Callers with an unknown key wait this long at most.
FETCH_TIMEOUT_S = 5.0
# Between two fetches for keys of tokens that the issuer itself gave us: it can be trusted not to make up key ids, but
# may publish its keys later than it uses them.
VOUCHED_COOLDOWN_S = 1.0

Observe = Callable[[str, str], None]
"""Told the issuer and the result, `ok` or `failed`, of every fetch."""

_log = logging.getLogger(__name__)


class KeySet:
    """The key set of one issuer.

    `keys` is None until a first fetch succeeds, and is the same object for as long as the issuer publishes the same
    keys. `start` begins the background refresh; without it keys are fetched only when a token asks for an unknown one.

    Keys are fetched again when they have aged `refresh`, or when the source says that they may have changed, if that is
    sooner; but not before `cooldown`.
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
        self._had_at = clock.monotonic()
        self._attempted_at = -math.inf
        self._due_at = -math.inf
        self._askable_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._freshening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Fetch now, and again whenever the keys have aged `refresh`, until `close`."""
        self._freshening = background.begin(self._keep_fresh, name=f"key set of {self._issuer.issuer}")

    def continue_from(self, before: "KeySet") -> None:
        """Begin with the keys of a set that has the same source."""
        self.keys, self._had_at = before.keys, before._had_at  # noqa: SLF001 of the same class
        self._attempted_at, self._askable_at = before._attempted_at, before._askable_at  # noqa: SLF001

    async def fetched(self) -> None:
        """Wait for the fetch that is under way, or for one that begins now, however it ends."""
        await asyncio.wait([self._fetch_once(asked=False)])

    async def retire(self) -> None:
        """Fetch no more by itself; whoever waits for a fetch that is under way still gets it."""
        await background.end(self._freshening)
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def close(self) -> None:
        """Cancel and await everything that `start` and `find` began."""
        await background.end(self._freshening, self._fetching)

    @property
    def age_s(self) -> float:
        """How long ago the last fetch succeeded; until the first does, how long ago this began."""
        return self._clock.monotonic() - self._had_at

    def holds(self, key: Key) -> bool:
        """Whether this very key is still published."""
        return self.keys is not None and key in self.keys.usable

    def known(self, key_id: str | None, algorithm: str) -> Key | None:
        """Return the key that verifies a token of this `kid` and `alg`, if it is here; asks nobody."""
        return None if self.keys is None else self.keys.find(key_id, algorithm)

    async def find(self, key_id: str | None, algorithm: str, *, vouched: bool = False) -> Key:
        """Return the key that verifies a token of this `kid` and `alg`; fetch again if it is unknown.

        `vouched`: the token came from the issuer itself just now, so that its key id is none that a stranger made up.
        It does not wait for a cooldown, and a fetch that was under way when it came is not the last word on it.

        Raises:
            TokenRefused: the issuer has no such key, as far as we could learn within `cooldown`.
            IdentityUnavailable: no key set could be had yet; or a vouched token's key is not published.
        """
        key = self.known(key_id, algorithm)
        for _ in range(2 if vouched else 1):
            if key is not None or not self._may_fetch(vouched=vouched):
                break
            # `wait`, because a caller that is cancelled must not cancel the fetch for the others.
            await asyncio.wait([self._fetch_once(asked=True)])
            key = self.known(key_id, algorithm)
        if key is not None:
            return key
        if self.keys is None or vouched:
            raise IdentityUnavailable(
                "The keys of the token's issuer could not be had yet. Try again.",
                retry_after_s=VOUCHED_COOLDOWN_S if vouched else self._askable_at - self._clock.monotonic(),
            )
        raise TokenRefused("key")

    def _may_fetch(self, *, vouched: bool) -> bool:
        """Whether a fetch runs that can be joined, or enough time has passed since the last that a token asked for.

        The date is set when a fetch begins and when one fails, never by those who ask in between: a flood of unknown
        key ids cannot put it off.
        """
        if self._fetching is not None and not self._fetching.done():
            return True
        now = self._clock.monotonic()
        return now >= self._askable_at or (vouched and now - self._attempted_at >= VOUCHED_COOLDOWN_S)

    def _fetch_once(self, *, asked: bool) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._attempted_at = self._clock.monotonic()
            self._due_at = self._attempted_at + self._issuer.cooldown
            if asked and self.keys is not None:
                self._askable_at = self._due_at
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                document = await self._source()
            keys = Keys.parse(document.content)
        except (KeySetUnusable, TimeoutError) as error:
            reason = error if isinstance(error, KeySetUnusable) else f"no answer within {self._timeout_s:g} s"
            kept = len(self.keys.usable) if self.keys else 0
            _log.warning("key set of %s: %s; %d keys kept", self._issuer.issuer, reason, kept)
            self._askable_at = self._attempted_at + self._issuer.cooldown
            self._observe(self._issuer.issuer, "failed")
            return
        if keys != self.keys:
            _log.info("key set of %s: %d usable keys", self._issuer.issuer, len(keys.usable))
            self.keys = keys
        self._had_at = self._clock.monotonic()
        self._due_at = self._attempted_at + self._fresh_for_s(document)
        self._observe(self._issuer.issuer, "ok")

    def _fresh_for_s(self, document: Document) -> float:
        if document.fresh_for_s is None:
            return self._issuer.refresh
        return min(max(document.fresh_for_s, self._issuer.cooldown), self._issuer.refresh)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.wait([self._fetch_once(asked=False)])
            # A date, not a state: fetches for unknown keys move it on.
            while (wait_s := self._due_at - self._clock.monotonic()) > 0:  # noqa: ASYNC110 see above
                await asyncio.sleep(wait_s)
