"""Counts in a Redis-protocol server that all gateways share: one script call a reservation, one a settlement."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import date
from functools import lru_cache, partial

from gateway import config
from gateway.admission.ledger.posting import Posting
from gateway.admission.observer import Observer
from gateway.admission.redis.backlog import Backlog, Memory
from gateway.admission.redis.cluster import Cluster
from gateway.admission.redis.events import write_no_event
from gateway.admission.redis.lane import Lane
from gateway.admission.redis.ledger import RedisLedger
from gateway.admission.redis.link import Link
from gateway.admission.redis.parts import of_settlement
from gateway.admission.redis.recent import Recent
from gateway.admission.redis.scripts import Scripts, answer, write_nothing
from gateway.admission.redis.sentinels import Sentinels
from gateway.admission.redis.server import Server
from gateway.admission.reservation import SETTLED_LATELY_S, Answer, Reservation, Settlement
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock
from gateway.config import store_url

# Renewals that share a pipeline: new calls wait for at most so many, however many are under way.
RENEW_TOGETHER = 100

# A settlement that was sent leaves a mark for longer than this. Later it cannot be told from one that was never taken.
_DOUBT_US = (SETTLED_LATELY_S - 60) * 1_000_000

_DAY_US = 86_400 * 1_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class RedisStore:
    """A `Store` in one server, or in the master that sentinels name.

    `events` says which streams are told of each booking, none by default. `lua_clock` is Lua that tells the time, the
    server's own by default. `backlog` is where settlements wait while the server is away, this process's memory by
    default.
    Losing one server's data loses the reservations of calls under way: they settle as unknown, and count nothing. Of
    a master that another replaced the last writes may be missing there: calls whose reservation is lost are charged
    what they used, and settlements of the last minute are sent again.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        timeout_s: float,
        lease_s: float,
        retention_s: float,
        observer: Observer,
        events: config.Events | None = None,
        backlog: Backlog[Settlement] | None = None,
        lua_clock: str | None = None,
    ) -> None:
        named = store_url.parse(url)
        self._backlog = backlog = Memory(observer.settlement_dropped) if backlog is None else backlog
        self.may_forget = named.topology != "server"
        marks_s = SETTLED_LATELY_S if self.may_forget else 0
        self._scripts = Scripts(
            lease_s=lease_s,
            retention_s=retention_s,
            events=events,
            clock=lua_clock,
            marks_s=marks_s,
            ledger_day=self._ledger_day if named.topology == "cluster" else None,
        )
        self._clock = clock
        self._ledger = RedisLedger(url)
        scripts = self._scripts.all
        self._lane: Lane[Settlement] | Cluster
        if named.topology == "cluster":
            self._lane = Cluster(
                named,
                scripts,
                clock,
                timeout_s=timeout_s,
                observer=observer,
                pack=self._doubted,
                split=of_settlement,
                tries=write_nothing if events is None else _write_nothing_nor_event,
                backlog=backlog,
            )
            return
        self._lane = Lane(
            Link(Sentinels(named, scripts) if self.may_forget else Server(url, scripts), clock),
            clock,
            timeout_s=timeout_s,
            observer=observer,
            pack=self._doubted if self.may_forget else self._scripts.settle,
            backlog=backlog,
            recent=Recent(clock) if self.may_forget else None,
        )

    @property
    def up(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self._lane.up

    @property
    def pending(self) -> int:
        """How many settlements have not reached the server yet."""
        return self._lane.pending

    def start(self) -> None:
        """Connect in the background. The server need not be there."""
        self._lane.start()

    async def close(self) -> None:
        """Deliver pending settlements, for two seconds at most, leave the rest in the backlog, and disconnect."""
        await self._lane.close()

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take `reservation` in one script call, in a pipeline shared with other calls.

        Raises:
            StoreUnavailable: at once while the server is known to be away, else after the store's timeout.
        """
        late = partial(self._give_back, reservation)
        reply = self._lane.ask("reserve", self._scripts.reserve(reservation), reservation.account.tag, late=late)
        try:
            return answer(await reply)
        except asyncio.CancelledError:
            if not reply.cancelled():  # it came in the turn in which the caller left
                late(reply.exception() or reply.result())
            raise

    def settle(self, settlement: Settlement) -> None:
        """Queue `settlement`: it goes ahead of the next reservations, or alone after a moment."""
        self._lane.post(settlement)

    def note(self, settlement: Settlement) -> None:
        """Have the backlog remember `settlement`, if it outlives this process."""
        self._backlog.note(settlement)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records, in shared pipelines.

        Raises:
            StoreUnavailable: as `reserve`.
        """
        failure: BaseException | None = None
        for start in range(0, len(reservations), RENEW_TOGETHER):
            together = map(self._renew, reservations[start : start + RENEW_TOGETHER])
            # Of a cluster one master may be away: the leases that the others have are renewed all the same.
            for outcome in await asyncio.gather(*together, return_exceptions=True):
                failure = outcome or failure
        if failure is not None:
            raise failure

    def ledger(self, tenant: str | None, since: date, until: date) -> AsyncIterator[Posting]:
        """Yield what was booked, read on a connection of its own. Settlements under way may not be in it yet.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        return self._ledger.postings(tenant, since, until)

    async def _renew(self, reservation: Reservation) -> None:
        await self._lane.ask("renew", self._scripts.renew(reservation), reservation.account.tag)

    def _ledger_day(self, at_us: int) -> str:
        """Return the UTC day at a time, or now where that is 0."""
        return _day((at_us or round(self._clock.now() * 1_000_000)) // _DAY_US)

    def _doubted(self, settlement: Settlement) -> bytes:
        """Return the command of a settlement that another server may have taken: it charges while it would be known."""
        now_us = round(self._clock.now() * 1_000_000)
        if not settlement.sent_us:
            settlement.sent_us = now_us
        elif not settlement.uncertain and now_us - settlement.sent_us > _DOUBT_US:
            settlement.charges = None
        return self._scripts.settle(settlement)

    def _give_back(self, reservation: Reservation, reply: Sequence[int] | BaseException) -> None:
        """Undo a reservation whose caller left before its reply came."""
        if not isinstance(reply, BaseException):
            given = answer(reply)
            if given.admitted:
                self.settle(reservation.only(given.fits(reservation)).settlement(None))
        elif isinstance(reply, StoreUnavailable) and reply.sent:
            self.settle(reservation.enforced().settlement(None, uncertain=True))


def _write_nothing_nor_event(tag: str) -> list[bytes]:
    return [*write_nothing(tag), write_no_event(tag)]


@lru_cache(maxsize=8)  # most calls are of today
def _day(number: int) -> str:
    return f"{date.fromordinal(_EPOCH_DAY + number):%Y%m%d}"
