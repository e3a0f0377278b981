"""A call's leave to run, held to its last byte: `with permit:` gives everything back unless the call was settled."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.admission.reservation import Reservation
from gateway.admission.store import Store
from gateway.calls.usage import Usage


@dataclass(slots=True, eq=False)  # not frozen, like the reservation: one for every call
class Charge:
    """What a store took for a call; `uncertain` where it may have taken nothing because its answer was lost."""

    store: Store
    reservation: Reservation
    uncertain: bool = False

    def settle(self, usage: Usage | None) -> None:
        """Charge `usage` in place of what was reserved; None gives everything back."""
        self.store.settle(self.reservation.settlement(usage, uncertain=self.uncertain))


class Permit:
    """Admitted. Only `Admission` makes one; `live` is its register of calls under way, by call id."""

    __slots__ = ("_call_id", "_live", "headers")

    def __init__(
        self,
        call_id: str,
        charges: tuple[Charge, ...],
        *,
        live: MutableMapping[str, tuple[Charge, ...]],
        headers: Mapping[str, str],
    ) -> None:
        self.headers = headers
        self._call_id = call_id
        self._live = live
        live[call_id] = charges

    def settle(self, usage: Usage) -> None:
        """Charge what the call used. Takes effect once: later calls change nothing. Never waits."""
        self._end(usage)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(None)

    def _end(self, usage: Usage | None) -> None:
        for charge in self._live.pop(self._call_id, ()):
            charge.settle(usage)
