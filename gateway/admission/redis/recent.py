"""What a server took lately: a server that takes its place may not know of it, for writes are copied after the reply.

What is posted again must be harmless where it is known.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic

from gateway.admission.redis.backlog import MAX_WAITING, Post
from gateway.clock import Clock

# Longer than any delay of copying, and than a master that was cut off from the others goes unnoticed.
KEPT_S = 60.0


class Recent(Generic[Post]):
    """Remembers posts for `KEPT_S`, and the latest only where they are too many."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: deque[tuple[float, Sequence[Post]]] = deque()
        self._count = 0

    def add(self, posts: Sequence[Post]) -> None:
        """The server took `posts` just now."""
        now_s = self._clock.monotonic()
        if posts:
            self._taken.append((now_s, posts))
            self._count += len(posts)
        while self._taken and (self._taken[0][0] <= now_s - KEPT_S or self._count > MAX_WAITING):
            self._count -= len(self._taken.popleft()[1])

    def recall(self) -> list[Post]:
        """Return what was taken lately, in order, and forget it."""
        self.add(())
        posts = [post for _, taken in self._taken for post in taken]
        self._taken.clear()
        self._count = 0
        return posts
