"""Bearer tokens that only their issuer can judge -> their principals, asked once and remembered for as long as granted.

One question per token at a time, however many calls wait for it. A token in use is asked about again before its grant
ends, in the background; while the issuer cannot be asked, what it granted last holds to its very end. Refusals are
remembered briefly. Memory is bounded, and holds digests, never tokens that nobody waits for.
"""

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from gateway import background
from gateway.clock import Clock
from gateway.errors import IdentityUnavailable, Unauthorized
from gateway.identity.accepted import Accepted
from gateway.identity.endpoint import IssuerFailed
from gateway.identity.grant import Grant
from gateway.identity.keyset import KeySet
from gateway.identity.refused import Reason, TokenRefused
from gateway.identity.verify import expired

# Measured 0.5 KB a grant: 34 MB when full.
CAPACITY = 65_536
# For how long a token that its issuer refused is refused without asking. One that becomes valid, as after an account is
# unlocked, waits so long at most.
REFUSED_S = 10.0
REFUSED_CAPACITY = 16_384
# How soon a renewal that failed is tried again, and how soon a call looks whether one has succeeded.
RETRY_S = 2.0
LOOK_S = 0.5
# At most one warning in this time: a service that fails now and then would fill the log.
WARN_EVERY_S = 10.0

Asked = Callable[[str, str, float], None]
"""Told the issuer, the result (`ok`, `refused` or `failed`) and the seconds of every question about a token."""

_log = logging.getLogger(__name__)


class Judge(Protocol):
    """Asks the issuer about one token."""

    async def ask(self, token: str, *, renewal: bool) -> Grant:
        """Return its grant; raise Unauthorized or IdentityUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class _Refused:
    until: float
    reason: Reason | None  # None: expired


class Grants:
    """What one issuer granted and refused. `key_set`: whose keys sign its grants, if any do. `close` ends questions."""

    def __init__(
        self,
        name: str,
        judge: Judge,
        *,
        key_set: KeySet | None,
        clock: Clock,
        timeout_s: float,
        asked: Asked,
        capacity: int = CAPACITY,
        refused_capacity: int = REFUSED_CAPACITY,
    ) -> None:
        self._name = name
        self._judge = judge
        self._key_set = key_set
        self._clock = clock
        self._timeout_s = timeout_s
        self._asked = asked
        self._capacity = capacity
        self._refused_capacity = refused_capacity
        self._held: OrderedDict[bytes, Grant] = OrderedDict()
        self._refused: OrderedDict[bytes, _Refused] = OrderedDict()
        self._questions: dict[bytes, asyncio.Task[Grant]] = {}
        self._failing: str | None = None
        self._warned_at = -math.inf

    async def accept(self, token: str) -> Accepted:
        """Return the principal of a token, and until when a call need not ask here again.

        Raises:
            Unauthorized: the issuer does not accept the token.
            IdentityUnavailable: it could not be asked in time, and no earlier grant holds.
        """
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock.now()
        held = self._usable(digest, now)
        if held is not None:
            if now >= held.renew_at:
                self._ask(digest, token, renewal=True)
            return self._accepted(held, now)
        self._raise_if_refused(digest, now)
        question = self._ask(digest, token, renewal=False)
        # `wait`, because a caller that is cancelled must not cancel the question for the others.
        await asyncio.wait([question], timeout=self._timeout_s)
        try:
            granted = _answer(question)
            if not self._still_signed(granted):
                raise IssuerFailed("its keys changed meanwhile")
            return self._accepted(granted, self._clock.now())
        except IdentityUnavailable:
            held = self._prolonged(digest)
            if held is None:
                raise
            return self._accepted(held, self._clock.now())

    async def retire(self) -> None:
        """Wait until every question that is under way is answered."""
        while self._questions:
            await asyncio.wait(list(self._questions.values()))

    async def close(self) -> None:
        """Cancel and await every question."""
        await background.end(*self._questions.values())

    def _usable(self, digest: bytes, now: float) -> Grant | None:
        """Return a grant that needs no waiting: not in its margin, or its renewal is late already."""
        held = self._held.get(digest)
        if held is None or now >= held.bound or not self._still_signed(held):
            return None
        return held if now < held.until or self._asking(digest) is not None else None

    def _asking(self, digest: bytes) -> asyncio.Task[Grant] | None:
        question = self._questions.get(digest)
        return None if question is None or question.done() else question

    def _still_signed(self, held: Grant) -> bool:
        return held.key is None or self._key_set is None or self._key_set.holds(held.key)

    def _accepted(self, held: Grant, now: float) -> Accepted:
        look_at = held.renew_at if now < held.renew_at else now + LOOK_S
        return Accepted(held.principal, min(look_at, held.until if now < held.until else held.bound), self._key_set)

    def _raise_if_refused(self, digest: bytes, now: float) -> None:
        refused = self._refused.get(digest)
        if refused is None:
            return
        if now < refused.until:
            raise expired() if refused.reason is None else TokenRefused(refused.reason)
        del self._refused[digest]

    def _ask(self, digest: bytes, token: str, *, renewal: bool) -> asyncio.Task[Grant]:
        question = self._asking(digest)
        if question is None:
            question = asyncio.create_task(self._question(digest, token, renewal=renewal))
            self._questions[digest] = question
            question.add_done_callback(lambda done: self._forget(digest, done))
        return question

    def _forget(self, digest: bytes, question: asyncio.Task[Grant]) -> None:
        if self._questions.get(digest) is question:
            del self._questions[digest]
        if not question.cancelled():
            question.exception()  # nobody may wait for a renewal's

    async def _question(self, digest: bytes, token: str, *, renewal: bool) -> Grant:
        began = self._clock.monotonic()
        result = "failed"
        try:
            grant = await self._judge.ask(token, renewal=renewal)
        except Unauthorized as error:
            result = "refused"
            self._heard(None)
            self._refuse(digest, error)
            raise
        except IdentityUnavailable as error:
            self._heard(error.why if isinstance(error, IssuerFailed) else "its keys could not be had")
            self._prolonged(digest)
            raise
        else:
            result = "ok"
            self._heard(None)
            self._hold(digest, grant)
            return grant
        finally:
            self._asked(self._name, result, self._clock.monotonic() - began)

    def _hold(self, digest: bytes, grant: Grant) -> None:
        self._held[digest] = grant
        self._held.move_to_end(digest)
        if len(self._held) > self._capacity:
            self._held.popitem(last=False)

    def _refuse(self, digest: bytes, error: Unauthorized) -> None:
        self._held.pop(digest, None)
        reason = error.reason if isinstance(error, TokenRefused) else None
        self._refused[digest] = _Refused(self._clock.now() + REFUSED_S, reason)
        if len(self._refused) > self._refused_capacity:
            self._refused.popitem(last=False)

    def _prolonged(self, digest: bytes) -> Grant | None:
        """Return what was granted before, if it still holds: without its margin, because the issuer cannot be asked."""
        held, now = self._held.get(digest), self._clock.now()
        if held is None or now >= held.bound or not self._still_signed(held):
            return None
        if held.until < held.bound or now >= held.renew_at:
            held = self._held[digest] = replace(held, until=held.bound, renew_at=now + RETRY_S)
        return held

    def _heard(self, failure: str | None) -> None:
        """Log that the issuer began to fail, fails differently, or answers again."""
        if failure is None:
            if self._failing is not None:
                _log.info("identity service of %s answers again", self._name)
            self._failing = None
        elif failure != self._failing and self._clock.monotonic() - self._warned_at >= WARN_EVERY_S:
            self._failing, self._warned_at = failure, self._clock.monotonic()
            _log.warning("identity service of %s: %s; what it granted before holds to its end", self._name, failure)


def _answer(question: asyncio.Task[Grant]) -> Grant:
    if not question.done():
        raise IssuerFailed("no answer in time")
    if question.cancelled():
        raise IssuerFailed("this gateway is about to stop")
    error = question.exception()
    if error is None:
        return question.result()
    # Each caller gets an exception of its own: one that is raised many times gathers all their tracebacks.
    raise copy(error)
