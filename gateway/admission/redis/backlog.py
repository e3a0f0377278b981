"""Where what is posted waits while the server does not take it: the protocol, and a bounded queue in memory."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
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

    def leave(self, posts: Sequence[Post]) -> None:
        """Keep `posts`, which the server took and another may not know of, for whoever comes after this process."""

    def oldest(self, at_most: int) -> Sequence[Post]:
        """Return the posts that have waited longest and are not aside; again the same, until they are `taken`."""

    def taken(self, aside: Collection[int] = ()) -> None:
        """Forget what `oldest` returned: the server has it. But put `aside` those of these numbers, from 0 on."""

    def again(self) -> None:
        """Have what was put aside come first again, in its order."""

    async def close(self) -> None:
        """End; nothing more comes."""


class Memory(Backlog[Post]):
    """Keeps so many posts; beyond that the oldest is dropped, and with the end all are."""

    def __init__(self, dropped: Callable[[], None], *, most: int = MAX_WAITING) -> None:
        self._most = most
        self._posts: deque[Post] = deque()
        self._aside: deque[Post] = deque()
        self._oldest = range(0)  # numbers of what was returned and is still here
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._posts) + len(self._aside)

    def keep(self, posts: Sequence[Post]) -> None:
        """Let `posts` wait; the oldest of too many are dropped."""
        self._posts.extend(posts)
        while len(self) > self._most:
            if self._aside:
                self._aside.popleft()
            else:
                self._posts.popleft()
                self._oldest = self._oldest[1:]
            self._dropped()

    def note(self, post: Post) -> None:
        """Do nothing: nothing here outlives the process."""

    def arrived(self, posts: Sequence[Post]) -> None:
        """Do nothing: nothing was noted."""

    def leave(self, posts: Sequence[Post]) -> None:
        """Do nothing: the server has them, and nobody comes after."""

    def oldest(self, at_most: int) -> Sequence[Post]:
        """Return those that have waited longest."""
        posts = list(islice(self._posts, at_most))
        self._oldest = range(len(posts))
        return posts

    def taken(self, aside: Collection[int] = ()) -> None:
        """Forget those, but for what is put aside; some were dropped meanwhile."""
        for number in self._oldest:
            post = self._posts.popleft()
            if number in aside:
                self._aside.append(post)
        self._oldest = range(0)

    def again(self) -> None:
        """Have those come first."""
        self._posts.extendleft(reversed(self._aside))
        self._aside.clear()

    async def close(self) -> None:
        """Drop what waits."""
        for _ in range(len(self)):
            self._dropped()
        self._posts.clear()
        self._aside.clear()
