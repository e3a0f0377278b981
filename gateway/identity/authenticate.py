"""The value of the Authorization header -> Principal, or the refusal to answer with. The whole of the identity stage.

Owns the issuers' key sets and what is remembered; knows nothing of bodies, limits or HTTP.
"""

import asyncio
import hashlib
import logging
from collections.abc import Collection

import aiohttp

from gateway import config
from gateway.clock import Clock
from gateway.identity.denied import Denied
from gateway.identity.grants import Asked
from gateway.identity.header import bearer_token
from gateway.identity.keyset import FETCH_TIMEOUT_S, Observe
from gateway.identity.principal import Principal
from gateway.identity.remembered import Remembered
from gateway.identity.trust import Judges, Means, Trust

# Whatever waits for an issuer ends at once when it is told to.
CLOSE_WITHIN_S = 1.0

_log = logging.getLogger(__name__)


def _unobserved(_issuer: str, _result: str, _seconds: float) -> None:
    pass


class Authenticator:
    """Says who calls. Built from `auth` of the config; `prepare` and `adopt` have it go by another one.

    `observe` is told the issuer and result of every key set fetch, `asked` of every question to an issuer about a
    token. `start` begins to keep the key sets fresh; `close` ends all background work. The session stays its giver's.
    """

    def __init__(
        self,
        auth: config.Auth,
        session: aiohttp.ClientSession,
        *,
        clock: Clock,
        observe: Observe,
        asked: Asked = _unobserved,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
        close_within_s: float = CLOSE_WITHIN_S,
    ) -> None:
        self._close_within_s = close_within_s
        self._clock = clock
        self._means = Means(session, clock, observe, asked, fetch_timeout_s)
        self._trust = Trust(auth, self._means)
        self._remembered = Remembered()
        self._retiring: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to fetch key sets, now and in the background; does not wait for them.

        Raises:
            DevelopmentKeyUnusable: a development key is configured and cannot be read.
        """
        self._trust.start()

    async def close(self) -> None:
        """End the background work."""
        for task in self._retiring:
            task.cancel()
        await self._ended([*self._retiring, *map(_closing, self._trust.judges)])

    async def prepare(self, auth: config.Auth) -> Trust:
        """Return what to `adopt`, once its key sets have been fetched, or could not be. Nothing changes yet.

        Raises:
            DevelopmentKeyUnusable: a development key is configured and cannot be read.
        """
        if auth == self._trust.auth:
            return self._trust
        trust = Trust(auth, self._means, before=self._trust)
        try:
            trust.start(before=self._trust)
            await trust.fetched(before=self._trust)
        except BaseException:  # it is not adopted
            await self.abandon(trust)
            raise
        return trust

    async def abandon(self, trust: Trust) -> None:
        """End what was prepared and is not adopted."""
        await self._ended([*map(_closing, trust.beyond(self._trust))])

    def adopt(self, trust: Trust) -> None:
        """Go by what was prepared from now on. Tokens are judged anew; who waits for a judgement still gets it."""
        if trust is self._trust:
            return
        left = self._trust.beyond(trust)
        self._trust, self._remembered = trust, self._remembered.emptied()
        for judges in left:
            task = asyncio.create_task(_retire(judges), name=f"retiring {judges.entry.issuer}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    @property
    def ready(self) -> bool:
        """Whether the keys of some issuer have been had, or somebody needs none; until then every call is 503."""
        return self._trust.ready

    def key_set_ages(self) -> list[tuple[str, float]]:
        """Return each issuer's name and how many seconds ago its key set was fetched well."""
        return self._trust.key_set_ages()

    def deny(self, denied: Denied) -> None:
        """Refuse from now on the tokens of those who are `denied`, and of nobody else."""
        self._remembered.deny(denied)

    def recall(self, authorization: bytes | None) -> Principal | None:
        """Return the principal of a call whose Authorization header, to the byte, was verified before; else None.

        Raises:
            TokenRefused: `revoked`.
        """
        if authorization is None:
            return None
        return self._remembered.get(hashlib.sha256(authorization).digest(), self._clock.now())

    async def authenticate(self, authorization: bytes | None) -> Principal:
        """Return the principal of a call, given its Authorization header.

        Does not suspend unless the token's key is unknown, or its issuer must be asked about it.

        Raises:
            Unauthorized: MissingToken, TokenRefused (an InvalidToken) or ExpiredToken.
            IdentityUnavailable: no key set of the token's issuer could be had yet, or the issuer could not be asked.
        """
        digest = hashlib.sha256(authorization or b"").digest()
        principal = self._remembered.get(digest, self._clock.now())
        if principal is not None:
            return principal
        remembered = self._remembered  # another one may be adopted meanwhile, in which this judgement has no place
        accepted = await self._trust.judge(bearer_token(authorization))
        # Nothing suspends between its judgement and here: it is remembered with the very keys that verified it.
        return remembered.put(digest, accepted)

    async def _ended(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Wait for them all at once: one that hangs holds up neither the others nor, for long, who waits here."""
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._close_within_s)
        for one in late:
            _log.warning("%s takes longer than %g s; it is left behind", one.get_name(), self._close_within_s)


async def _retire(judges: Judges) -> None:
    try:
        await judges.retire()
    finally:
        await judges.close()


def _closing(judges: Judges) -> asyncio.Task[None]:
    return asyncio.create_task(judges.close(), name=f"closing {judges.entry.issuer}")
