"""Where what is posted waits while the server does not take it: the protocol, and a bounded queue in memory."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol, TypeVar

# Posts kept in memory: about a minute of 1000 calls a second, in some 50 MB.
MAX_WAITING = 50_000

Post = TypeVar("Post")


class Backlog(Protocol[Post]):
    """A queue of posts. What it cannot keep it counts."""

    def __len__(self) -> int:
        """How many posts wait."""

    def keep(self, posts: Sequence[Post]) -> None:
        """Let `posts` wait behind the others. Never fails and never waits."""

    def note(self, post: Post) -> None:
        """Keep `post` for whoever comes after this process, unless its call's settlement is kept or has `arrived`."""

    def arrived(self, posts: Sequence[Post]) -> None:
        """Hear that the server has `posts`, which did not wait here."""

    def oldest(self, at_most: int) -> Sequence[Post]:
        """Return the posts that have waited longest; again the same, until they are `taken`."""

    def taken(self) -> None:
        """Forget what `oldest` returned: the server has it."""

    async def close(self) -> None:
        """End; nothing more comes."""


class Memory(Backlog[Post]):
    """Keeps `MAX_WAITING` posts; beyond that the oldest is dropped, and with the end all are."""

    def __init__(self, dropped: Callable[[], None]) -> None:
        self._posts: deque[Post] = deque()
        self._oldest = 0
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._posts)

    def keep(self, posts: Sequence[Post]) -> None:
        """Let `posts` wait; the oldest of too many are dropped."""
        self._posts.extend(posts)
        while len(self._posts) > MAX_WAITING:
            self._posts.popleft()
            self._oldest = max(self._oldest - 1, 0)
            self._dropped()

    def note(self, post: Post) -> None:
        """Do nothing: nothing here outlives the process."""

    def arrived(self, posts: Sequence[Post]) -> None:
        """Do nothing: nothing was noted."""

    def oldest(self, at_most: int) -> Sequence[Post]:
        """Return those that have waited longest."""
        posts = list(islice(self._posts, at_most))
        self._oldest = len(posts)
        return posts

    def taken(self) -> None:
        """Forget those, but for what was dropped meanwhile."""
        for _ in range(self._oldest):
            self._posts.popleft()
        self._oldest = 0

    async def close(self) -> None:
        """Drop what waits."""
        for _ in self._posts:
            self._dropped()
        self._posts.clear()
