"""A call's leave to run, held to its last byte: `with permit:` gives everything back unless the call was settled."""

from collections.abc import MutableMapping, Sequence
from types import TracebackType
from typing import Self

from gateway.admission.limit import Limit
from gateway.admission.reservation import Reservation
from gateway.admission.rules import Applying
from gateway.admission.store import Store
from gateway.calls.usage import Usage


class Permit(Reservation):
    """What was taken from `store` for a call, until it is settled. Only `Admission` makes one.

    `live` is its register of calls under way, by call id. `fields` are the lines of the answer's head that show the
    limits. `uncertain`: the store may have taken nothing, because its answer was lost; `unsent`: it was not even asked,
    and no note was made.
    `doubtful` is what it may have taken, and is charged, of a call that was admitted without it.

    Where a call is answered elsewhere than it was admitted for, `elsewhere` is what applies there, and `further` what
    was taken for it of limits that are not among these.
    """

    __slots__ = ("_live", "applying", "doubtful", "elsewhere", "fields", "further", "store", "uncertain", "unsent")

    def __init__(
        self,
        call_id: str,
        applying: Applying,
        *,
        limits: tuple[Limit, ...],
        costs: tuple[int, ...],
        store: Store,
        live: MutableMapping[str, "Permit"],
    ) -> None:
        self.call_id = call_id
        self.account = applying.account
        self.applying = applying
        self.limits = limits
        self.costs = costs
        self.store = store
        self.fields = ""
        self.uncertain = False
        self.unsent = False
        self.doubtful: Permit | None = None
        self.elsewhere: Applying | None = None
        self.further: Permit | None = None
        self._live = live

    def settle(self, usage: Usage | None) -> None:
        """Charge what the call used; None gives everything back. Takes effect once, and never waits."""
        if self._live.pop(self.call_id, None) is not None:
            self.end(usage)
        if self.further is not None:  # last: whoever dies in between has booked the call, and left reserved the rest
            self.further.settle(usage)

    def turn(self, elsewhere: Applying | None, further: "Permit | None") -> None:
        """From now on the call may be answered `elsewhere`; None: where it was admitted for. Not yet settled."""
        if self.further is not None:
            self.further.settle(None)
        self.elsewhere, self.further = elsewhere, further
        if self.doubtful is not None:
            self.doubtful.elsewhere = elsewhere

    def end(self, usage: Usage | None) -> None:
        """Settle what is not, or no longer, a call under way."""
        if usage is None and self.unsent:
            return
        if usage is None or self.elsewhere is None:
            settlement = self.settlement(usage, uncertain=self.uncertain, charging=self.store.may_forget)
        else:
            settlement = self.settlement_elsewhere(
                usage,
                self.elsewhere.account,
                used={limit.key for limit in self.elsewhere.limits},
                uncertain=self.uncertain,
                charging=self.store.may_forget,
            )
        self.store.settle(settlement)
        if self.doubtful is not None:
            self.doubtful.end(usage)

    def make_uncertain(self, *, sent: bool) -> None:
        """Nobody saw the store's answer: it took this, or nothing. Shadows are let go, which may be charged or not."""
        self.keep([not limit.shadow for limit in self.limits])
        self.uncertain, self.unsent = True, not sent

    def note(self) -> None:
        """Have this charged as reserved if the process dies before the call ends."""
        if self.limits:
            self.store.note(self.as_reserved())
            self.unsent = False

    def keep(self, kept: Sequence[bool]) -> None:
        """Narrow this to the limits that are `kept`."""
        only = self.only(kept)
        self.limits, self.costs = only.limits, only.costs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle(None)
