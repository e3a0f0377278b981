"""Counts in a Redis-protocol server that all gateways share: one script call a reservation, one a settlement."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.admission.lane import Lane
from gateway.admission.link import Link
from gateway.admission.observer import Observer
from gateway.admission.reservation import Answer, Reservation, Settlement
from gateway.admission.scripts import Scripts, answer
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock

# Renewals that share a pipeline: new calls wait for at most so many, however many are under way.
RENEW_TOGETHER = 100


class RedisStore:
    """A `Store` behind `redis://` or `rediss://`. `lua_clock` is Lua that tells the time, the server's own by default.

    Losing the server's data loses the reservations of calls under way: they settle as unknown, and count nothing.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        timeout_s: float,
        lease_s: float,
        observer: Observer,
        lua_clock: str | None = None,
    ) -> None:
        self._scripts = Scripts(lease_s=lease_s, clock=lua_clock)
        self._lane = Lane(Link(url, self._scripts.all), clock, timeout_s=timeout_s, observer=observer)

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
        """Deliver pending settlements, for two seconds at most, and disconnect."""
        await self._lane.close()

    async def reserve(self, reservation: Reservation) -> Answer:
        """Take `reservation` in one script call, in a pipeline shared with other calls.

        Raises:
            StoreUnavailable: at once while the server is known to be away, else after the store's timeout.
        """
        ask = self._lane.ask("reserve", self._scripts.reserve(reservation))
        try:
            reply = await ask.reply
        except asyncio.CancelledError:
            if not self._lane.withdraw(ask):
                ask.kept().add_done_callback(partial(self._give_back, reservation))
            raise
        return answer(reservation, reply)

    def settle(self, settlement: Settlement) -> None:
        """Queue `settlement`: it goes ahead of the next reservations, or alone after a moment."""
        self._lane.post(self._scripts.settle(settlement))

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        """Extend leases and records, in shared pipelines.

        Raises:
            StoreUnavailable: as `reserve`.
        """
        for start in range(0, len(reservations), RENEW_TOGETHER):
            commands = [
                self._scripts.renew(reservation) for reservation in reservations[start : start + RENEW_TOGETHER]
            ]
            replies = [self._lane.ask("renew", command).reply for command in commands]
            await asyncio.wait(replies)
            failures = [failure for reply in replies if (failure := reply.exception()) is not None]
            if failures:
                raise failures[0]

    def _give_back(self, reservation: Reservation, reply: asyncio.Future[Any]) -> None:
        """Undo a reservation whose caller left before its reply came."""
        failure = reply.exception()
        if failure is None:
            given = answer(reservation, reply.result())
            if given.admitted:
                self.settle(reservation.only(given.fits(reservation)).settlement(None))
        elif isinstance(failure, StoreUnavailable) and failure.sent:
            self.settle(reservation.enforced().settlement(None, uncertain=True))
