"""How the calls of one model are divided among several pools: names with weights in, one of them out. No I/O."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Self, TypeVar

from gateway.calls.prefix import Prefixes

_64_BITS = 2**64

Part = TypeVar("Part")


class Split(Generic[Part]):
    """A part for each name, with the weight of its share of the calls. `make` makes them; some weight is not 0.

    What has no weight has no part. `parts` has the largest share first.
    """

    __slots__ = ("_chance", "_ends", "_others", "parts")

    def __init__(self, weights: Mapping[str, float], make: Callable[[str, Self], Part], chance: random.Random) -> None:
        made = {name: make(name, self) for name, weight in weights.items() if weight}
        largest_first = sorted(made, key=lambda name: -weights[name])  # those of one weight as they stand
        self.parts: Sequence[Part] = [made[name] for name in largest_first]
        self._others = {name: [made[other] for other in largest_first if other != name] for name in made}
        self._chance = chance
        self._ends: list[tuple[float, Part]] = []
        total, end = sum(weights.values()), 0.0
        for name, part in made.items():
            end += weights[name]
            self._ends.append((end / total, part))

    def choose(self, prefixes: Prefixes) -> Part:
        """Return the part for one call: by how its prompt begins where that is known, else by chance.

        It goes by the first prefix, which stays the same while a conversation grows. Where weights change, no more
        conversations move than have to.
        """
        at = prefixes[0] / _64_BITS if prefixes else self._chance.random()
        for end, part in self._ends:
            if at < end:
                return part
        return self._ends[-1][1]  # the largest prefix is rounded up to 1

    def others(self, name: str) -> Sequence[Part]:
        """Return all parts but that of this name, the largest share first."""
        return self._others[name]
