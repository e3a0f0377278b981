"""Room for the bodies of all calls under way: many large ones at once must not take all the memory there is.

A body counts from its first byte here to the end of its call, which may send it to several replicas. What a client only
declares counts nothing: who holds uploads back would hold back everybody else's.
"""


class Room:
    """Bytes that bodies may take together."""

    __slots__ = ("_free", "_size")

    def __init__(self, size: int) -> None:
        self._free = self._size = size

    def resize(self, size: int) -> None:
        """Have so much room from now on. What was taken stays taken, even where it is more than all there is."""
        self._free += size - self._size
        self._size = size

    def has(self, size: int) -> bool:
        """Whether so much is free at the moment."""
        return size <= self._free

    def take(self, size: int) -> bool:
        """Take so much, if it is free."""
        if size > self._free:
            return False
        self._free -= size
        return True

    def give_back(self, size: int) -> None:
        """Free what was taken."""
        self._free += size
