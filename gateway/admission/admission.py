"""Principal + Call -> Permit: every limit that applies is reserved in one step, or the call is refused."""

import asyncio
import logging
from collections import defaultdict

from gateway import background, config, errors
from gateway.admission.headers import ratelimit_fields
from gateway.admission.memory import MemoryStore
from gateway.admission.observer import Observer
from gateway.admission.permit import Permit
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
    """The stage. `store` holds the counts; while it is away, each rule's `on_store_failure` says what holds instead."""

    def __init__(self, limits: config.Limits, store: Store, clock: Clock, *, observer: Observer) -> None:
        self._limits = limits
        self._rulebook = Rulebook(limits)
        self._store = store
        self._alone = MemoryStore(clock, lease_s=limits.lease)
        self._clock = clock
        self._observer = observer
        self._live: dict[str, Permit] = {}
        self._renewing: asyncio.Task[None] | None = None

    def configure(self, limits: config.Limits) -> None:
        """Go by these limits from now on. Counts go on, and calls under way keep what they were admitted with."""
        self._limits = limits
        self._rulebook.configure(limits)

    @property
    def rulebook(self) -> Rulebook:
        """Which limits apply to whom."""
        return self._rulebook

    @property
    def ready(self) -> bool:
        """Whether calls can be admitted: False only where a store that is away means that none are."""
        return self._store.up or not self._limits.denies_all

    def start(self) -> None:
        """Begin the store's background work, and renewing leases."""
        self._store.start()
        self._renewing = background.begin(self._renew, name="lease renewal")

    async def close(self) -> None:
        """Stop renewing, deliver pending settlements within the store's bound, and let the store go."""
        await background.end(self._renewing)
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
            LimitsUnavailable: the store does not answer, and `on_store_failure` of a rule is `deny`.
        """
        applying = self._rulebook.applying(principal, model=model, pool=pool)
        if applying.plan_unknown:
            self._observer.plan_unknown()
        return await self._take(applying, call, default_output_tokens=default_output_tokens, call_id=call_id)

    async def admit_elsewhere(
        self,
        permit: Permit,
        principal: Principal,
        call: Call,
        *,
        model: str,
        pool: str,
        default_output_tokens: int,
        call_id: str,
    ) -> None:
        """Let the call of `permit` be answered by another model or pool. `call_id` is unique to this part of it.

        Limits that apply there too stay as they are reserved. What further ones there are is taken in one step. Until
        the call is settled it holds both; the last of several holds in place of those before.

        Raises:
            RateLimited, QuotaExceeded, RequestExceedsLimit, LimitsUnavailable: as `admit`. It is then as it was
                admitted, and may be answered there only.
        """
        permit.turn(None, None)
        elsewhere = self._rulebook.applying(principal, model=model, pool=pool)
        beyond = self._rulebook.beyond(permit.applying, principal, model=model, pool=pool)
        further = None
        if beyond.limits:
            further = await self._take(beyond, call, default_output_tokens=default_output_tokens, call_id=call_id)
            further.turn(beyond, None)
        permit.turn(elsewhere, further)

    async def _take(self, applying: Applying, call: Call, *, default_output_tokens: int, call_id: str) -> Permit:
        asked = costs(applying.limits, call, default_output_tokens=default_output_tokens)
        limits, rules = applying.limits, applying.rules
        permit = Permit(call_id, applying, limits=limits, costs=asked, store=self._store, live=self._live)
        answer: Answer | None = None
        try:
            answer = await self._store.reserve(permit)
        except StoreUnavailable as failure:
            if applying.denied:
                raise _unavailable(permit, sent=failure.sent) from failure
            if not applying.shares:
                return self._uncounted(permit, sent=failure.sent)
            permit = self._counted_alone(permit, applying, sent=failure.sent)
        if answer is None:  # behind the handler: compiled code must not wait within one (docs/performance.md#compiled)
            rules = tuple([share.rule for share in applying.shares])
            answer = await self._alone.reserve(permit)
        if not answer.admitted:
            if permit.doubtful is not None:
                permit.doubtful.end(None)
            raise self._refused(permit, answer)
        if permit.doubtful is not None:
            permit.doubtful.note()
        permit.fields = ratelimit_fields(permit.limits, permit.costs, answer.levels)
        if applying.shadows:
            self._leave_out_shadows(permit, answer)
        else:
            self._observer.limits_admitted(rules)
        self._live[call_id] = permit
        return permit

    def _uncounted(self, permit: Permit, *, sent: bool) -> Permit:
        """Admit without counting. What was `sent` the store may have taken although nobody saw its answer."""
        permit.make_uncertain(sent=sent)
        if self._charges_later(sent=sent):
            permit.note()
            self._live[permit.call_id] = permit
        return permit

    def _counted_alone(self, permit: Permit, applying: Applying, *, sent: bool) -> Permit:
        """Return what to ask of this process's own counts; with it goes what the store took or is to be told later."""
        alone = Permit(
            permit.call_id,
            applying,
            limits=applying.shares,
            costs=_within_shares(applying, permit),
            store=self._alone,
            live=self._live,
        )
        if self._charges_later(sent=sent):
            permit.make_uncertain(sent=sent)
            alone.doubtful = permit
        return alone

    def _charges_later(self, *, sent: bool) -> bool:
        """Whether the store is told of a call that it did not answer for: it may know it, or a journal keeps it."""
        return sent or self._limits.journal is not None

    def _leave_out_shadows(self, permit: Permit, answer: Answer) -> None:
        """Tell what each rule says to an admitted call, and leave the shadows that it does not fit uncharged."""
        fits = answer.fits(permit)
        for limit, fit in zip(permit.limits, fits, strict=True):
            self._observer.limit_decided(limit.rule, "admitted" if fit else "shadow")
        permit.keep(fits)

    def _refused(self, reservation: Reservation, answer: Answer) -> errors.TooMany:
        for limit, fit in zip(reservation.limits, answer.fits(reservation), strict=True):
            if not fit and not limit.shadow:
                self._observer.limit_decided(limit.rule, "refused")
        return refusal(reservation, answer, now_s=self._clock.now())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / RENEWALS)
            held: defaultdict[Store, list[Reservation]] = defaultdict(list)
            for permit in self._live.values():
                held[permit.store].append(permit)
                if permit.doubtful is not None:
                    held[permit.doubtful.store].append(permit.doubtful)
            for store, reservations in held.items():
                try:
                    await store.renew(reservations)
                except StoreUnavailable:
                    log.debug("leases were not renewed: the limit store is away")  # its going away was logged


def _unavailable(permit: Permit, *, sent: bool) -> errors.LimitsUnavailable:
    """Give back what the store may have taken, and return the refusal."""
    permit.make_uncertain(sent=sent)
    permit.end(None)
    return errors.LimitsUnavailable("Limits cannot be checked at the moment. Try again shortly.")


def _within_shares(applying: Applying, reservation: Reservation) -> tuple[int, ...]:
    """Return the costs for deciding alone: a call that fits a limit but not the share of it takes the whole share."""
    alone = reservation.only(applying.alone)
    return tuple(
        min(cost, share.limit) if cost <= limit.limit else cost
        for limit, share, cost in zip(alone.limits, applying.shares, alone.costs, strict=True)
    )
