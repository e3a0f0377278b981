"""What passes between admission and a store: what a call asks for, what it got, and how it ended. Values only."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gateway.admission.ledger.account import Account
from gateway.admission.limit import MAX_COUNT, Level, Limit
from gateway.admission.price import Price
from gateway.admission.rules import REMEMBERED, counted
from gateway.calls.usage import Usage

# A record of a reservation lasts as long as the longest outage that is survived, so that a settlement that was held
# back still finds its call. One that nobody renews is its gateway's that was killed.
RECORD_S = 7 * 86_400

# How long a settlement stays for a reservation that may still come out of a connection that was given up, and for the
# same settlement: a gateway that is killed while it empties its journal sends all of it again.
SETTLED_S = RECORD_S

# How long every settlement stays in servers that may forget what they acknowledged, where it may be sent again: about
# 150 bytes for each call of the last five minutes.
SETTLED_LATELY_S = 300

# How long a refusal is known. One whose answer was lost is asked for again, within `limits.store_timeout` (this at
# most), and is to be booked once.
REFUSED_S = 10


# Each of these is made for every call, and therefore not frozen, as other values are: that costs three times as much.
@dataclass(slots=True, eq=False)
class Settlement:
    """The end of a reservation: what to add to each limit (negative: given back); leases among `limits` end.

    `usage` is what the ledger is told; None where no engine took the call, which then is not booked at all.
    `uncertain`: nobody saw the reservation's answer. It may still be on its way, and must then find itself settled.
    `charges` is what to add instead where there was no reservation; None: nothing at all is done there. `ended_us` is
    when the call ended, if that is not now; `sent_us` when it was first sent to a store that may have taken it.
    `refused`: the ledger is told that the call was refused. `unended`: nobody saw the call end, and it is reserved from
    then on, whether or not it was.
    """

    call_id: str
    account: Account
    limits: tuple[Limit, ...]
    deltas: Sequence[int]
    usage: Usage | None
    uncertain: bool
    charges: Sequence[int] | None = None
    ended_us: int = 0
    sent_us: int = 0
    refused: bool = False
    unended: bool = False

    @property
    def record(self) -> str:
        """The key of the reservation's record."""
        return f"gw:{{{self.account.tag}}}:call:{self.call_id}"


@dataclass(slots=True, eq=False)
class Reservation:
    """What one call asks for, all or none: `costs[i]` of `limits[i]`."""

    call_id: str
    account: Account
    limits: tuple[Limit, ...]
    costs: tuple[int, ...]

    @property
    def record(self) -> str:
        """The key of this reservation's record."""
        return f"gw:{{{self.account.tag}}}:call:{self.call_id}"

    def settlement(self, usage: Usage | None, *, uncertain: bool = False, charging: bool = False) -> Settlement:
        """Return what settles this: the difference to `usage`, or everything given back where nothing was generated.

        With `charging` it says what to charge where there is no reservation, as an uncertain one always does.
        """
        if usage is None:
            return Settlement(self.call_id, self.account, self.limits, [-cost for cost in self.costs], None, uncertain)
        if usage.prompt < 0 or usage.completion < 0 or usage.prompt + usage.completion > MAX_COUNT:
            prompt, completion, cached, reasoning = [min(max(figure, 0), MAX_COUNT // 2) for figure in usage[:4]]
            usage = Usage(prompt, completion, min(cached, prompt), min(reasoning, completion), usage.source)
        prompt, completion = usage.prompt, usage.completion
        used = [1, 0, prompt + completion, prompt, completion]
        limits, ended, prices = _ended_by_usage(self.limits)
        if prices:
            used += [min(price.units(*usage[:4]), MAX_COUNT) for price in prices]
        costs = self.costs
        if uncertain or charging:
            charges = [used[place] for place in counted(self.limits)[0]]
            deltas = [charge - cost for charge, cost in zip(charges, costs, strict=True)]
            return Settlement(self.call_id, self.account, self.limits, deltas, usage, uncertain, charges)
        deltas = [used[place] - costs[i] for i, place in ended]
        return Settlement(self.call_id, self.account, limits, deltas, usage, uncertain)

    def as_reserved(self) -> Settlement:
        """Return what charges this as reserved, whether or not the store has it: of a call that nobody saw end."""
        nothing = [0] * len(self.costs)
        settlement = Settlement(self.call_id, self.account, self.limits, nothing, None, uncertain=True)
        settlement.charges, settlement.unended = self.costs, True
        return settlement

    def settlement_elsewhere(
        self,
        usage: Usage,
        account: Account,
        *,
        used: Collection[str],
        uncertain: bool = False,
        charging: bool = False,
    ) -> Settlement:
        """Return what settles this where the call was answered elsewhere: what it used is booked to `account`.

        Of the limits only those whose keys are `used` are charged; what was reserved of the others is given back.
        """
        settlement = self.settlement(usage, uncertain=uncertain, charging=True)
        assert settlement.charges is not None, "it says what to charge"
        charges = [
            charge if limit.key in used else 0 for limit, charge in zip(self.limits, settlement.charges, strict=True)
        ]
        settlement.account = account
        settlement.deltas = [charge - cost for charge, cost in zip(charges, self.costs, strict=True)]
        settlement.charges = charges if uncertain or charging else None
        settlement.usage = settlement.usage if account.model else None
        return settlement

    def enforced(self) -> "Reservation":
        """Return the part of this that can refuse."""
        return self.only([not limit.shadow for limit in self.limits])

    def only(self, kept: Sequence[bool]) -> "Reservation":
        """Return the part of this whose limits are `kept`."""
        return Reservation(
            self.call_id,
            self.account,
            tuple([limit for limit, keep in zip(self.limits, kept, strict=True) if keep]),
            tuple([cost for cost, keep in zip(self.costs, kept, strict=True) if keep]),
        )


@dataclass(slots=True, eq=False)
class Answer:
    """Whether a reservation was taken, and the level of each of its limits before it."""

    admitted: bool
    levels: Sequence[Level]

    def fits(self, reservation: Reservation) -> list[bool]:
        """Return which limits `reservation` fits. Of an admitted one, those were charged; the others are shadows."""
        return [
            not limit.refuses(level[0], cost)
            for limit, cost, level in zip(reservation.limits, reservation.costs, self.levels, strict=True)
        ]


@lru_cache(maxsize=REMEMBERED)
def _ended_by_usage(
    limits: tuple[Limit, ...],
) -> tuple[tuple[Limit, ...], tuple[tuple[int, int], ...], tuple[Price, ...]]:
    """Return which of `limits` change where a call ends with a usage: all but requests.

    Beside them where each stands, and what it counts among the call's figures; and the prices of all.
    """
    places, prices, _ = counted(limits)
    ended = [(i, place) for i, place in enumerate(places) if limits[i].measure != "requests"]
    return tuple([limits[i] for i, _ in ended]), tuple(ended), prices
