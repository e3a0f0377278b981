"""Principal + Call -> Permit: every limit that applies is reserved in one step, or the call is refused."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from gateway import config, errors
from gateway.admission.headers import ratelimit_headers
from gateway.admission.memory import MemoryStore
from gateway.admission.observer import Observer
from gateway.admission.permit import Charge, Permit
from gateway.admission.refusals import refusal
from gateway.admission.reservation import Answer, Reservation
from gateway.admission.rules import Applying, Rulebook, costs
from gateway.admission.store import Store, StoreUnavailable
from gateway.calls.call import Call
from gateway.clock import Clock
from gateway.identity.principal import Principal

log = logging.getLogger(__name__)

# A lease is renewed this often in its life, so that one lost renewal costs no slot.
RENEWALS = 3


class Admission:
    """The stage. `store` holds the counts; while it is away, `limits.on_store_failure` says what holds instead."""

    def __init__(self, limits: config.Limits, store: Store, clock: Clock, *, observer: Observer) -> None:
        self._limits = limits
        self._rulebook = Rulebook(limits)
        self._store = store
        self._alone = MemoryStore(clock, lease_s=limits.lease)
        self._clock = clock
        self._observer = observer
        self._live: dict[str, tuple[Charge, ...]] = {}
        self._renewing: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether calls can be admitted: False only where a store that is away means that none are."""
        return self._store.up or self._limits.on_store_failure != "deny"

    @property
    def pending_settlements(self) -> int:
        """How many settlements have not reached the store yet."""
        return self._store.pending

    def start(self) -> None:
        """Begin the store's background work, and renewing leases."""
        self._store.start()
        self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="lease renewal")

    async def close(self) -> None:
        """Stop renewing, deliver pending settlements within the store's bound, and let the store go."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        await self._store.close()

    async def admit(
        self, principal: Principal, call: Call, *, model: str, pool: str, default_output_tokens: int, call_id: str
    ) -> Permit:
        """Reserve what `call` may use. `call_id` is unique to it; all its attempts share the permit.

        Cancelling gives back what was reserved.

        Raises:
            RateLimited: a window that refills is used up.
            QuotaExceeded: a calendar quota is spent.
            RequestExceedsLimit: the call is larger than a whole limit.
            LimitsUnavailable: the store does not answer and `on_store_failure` is `deny`.
        """
        applying = self._rulebook.applying(principal, model=model, pool=pool)
        if applying.plan_unknown:
            self._observer.plan_unknown()
        if not applying.limits:
            return Permit(call_id, (), live=self._live, headers={})
        asked = costs(applying.limits, call, default_output_tokens=default_output_tokens)
        reservation = Reservation(call_id, applying.tag, applying.limits, asked)
        try:
            answer = await self._store.reserve(reservation)
        except StoreUnavailable as failure:
            doubtful = (Charge(self._store, reservation.enforced(), uncertain=True),) if failure.sent else ()
            return await self._without_store(applying, reservation, doubtful)
        return self._conclude(self._store, applying, reservation, answer, doubtful=())

    async def _without_store(
        self, applying: Applying, reservation: Reservation, doubtful: tuple[Charge, ...]
    ) -> Permit:
        """Decide without the store. `doubtful` is what it may have taken although nobody saw its answer."""
        if self._limits.on_store_failure == "allow":
            return Permit(reservation.call_id, doubtful, live=self._live, headers={})
        if self._limits.on_store_failure == "deny":
            _give_back(doubtful)
            raise errors.LimitsUnavailable("Limits cannot be checked at the moment. Try again shortly.")
        alone = Reservation(
            reservation.call_id, reservation.tag, applying.shares, _within_shares(applying, reservation)
        )
        return self._conclude(self._alone, applying, alone, await self._alone.reserve(alone), doubtful=doubtful)

    def _conclude(
        self,
        store: Store,
        applying: Applying,
        reservation: Reservation,
        answer: Answer,
        *,
        doubtful: tuple[Charge, ...],
    ) -> Permit:
        if not answer.admitted:
            _give_back(doubtful)
            raise self._refused(reservation, answer)
        taken = reservation
        if applying.shadows:
            taken = self._charged(reservation, answer)
        else:
            self._observer.limits_admitted(applying.rules)
        return Permit(
            reservation.call_id,
            (Charge(store, taken), *doubtful),
            live=self._live,
            headers=ratelimit_headers(reservation.limits, reservation.costs, answer.levels),
        )

    def _charged(self, reservation: Reservation, answer: Answer) -> Reservation:
        """Return the part of an admitted `reservation` that was charged: without the shadows that it does not fit."""
        fits = answer.fits(reservation)
        for limit, fit in zip(reservation.limits, fits, strict=True):
            self._observer.limit_decided(limit.rule, "admitted" if fit else "shadow")
        return reservation if all(fits) else reservation.only(fits)

    def _refused(self, reservation: Reservation, answer: Answer) -> errors.TooMany:
        for limit, fit in zip(reservation.limits, answer.fits(reservation), strict=True):
            if not fit and not limit.shadow:
                self._observer.limit_decided(limit.rule, "refused")
        return refusal(reservation, answer, now_s=self._clock.now())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / RENEWALS)
            held: defaultdict[Store, list[Reservation]] = defaultdict(list)
            for charges in self._live.values():
                for charge in charges:
                    held[charge.store].append(charge.reservation)
            for store, reservations in held.items():
                try:
                    await store.renew(reservations)
                except StoreUnavailable:
                    log.debug("leases were not renewed: the limit store is away")  # its going away was logged


def _give_back(charges: Sequence[Charge]) -> None:
    for charge in charges:
        charge.settle(None)


def _within_shares(applying: Applying, reservation: Reservation) -> tuple[int, ...]:
    """Return the costs for deciding alone: a call that fits a limit but not the share of it takes the whole share."""
    return tuple(
        min(cost, share.limit) if cost <= limit.limit else cost
        for limit, share, cost in zip(reservation.limits, applying.shares, reservation.costs, strict=True)
    )
