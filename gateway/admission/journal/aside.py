"""Places of lines that were handed out and could not be taken: they wait aside, in order, until they come again.

No I/O. A place is some 40 bytes: of a whole file of a million lines 40 MB.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice


class Aside:
    """`len` is how many wait; those that come again do not."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._coming: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, places: Iterable[int]) -> None:
        """Let lines wait behind the others."""
        self._waiting.extend(places)

    def again(self) -> None:
        """Have all that wait come again."""
        self._waiting.extend(self._coming)
        self._waiting, self._coming = deque(), self._waiting

    def oldest(self, at_most: int) -> list[int]:
        """Return the first places that come again; the same until they are `taken`."""
        return list(islice(self._coming, at_most))

    def taken(self, count: int) -> None:
        """Forget the first places that come again."""
        for _ in range(count):
            self._coming.popleft()

    def forget_before(self, place: int) -> None:
        """Forget all lines before `place`."""
        for places in (self._waiting, self._coming):
            kept = [one for one in places if one >= place]
            places.clear()
            places.extend(kept)

    def count_from(self, place: int) -> int:
        """Return how many lines there are from `place` on."""
        return sum(one >= place for places in (self._waiting, self._coming) for one in places)
