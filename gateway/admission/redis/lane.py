"""One lane of pipelines to the shared store: commands in, each reply to whoever waits for it.

What comes while a pipeline is under way goes together in the next one, posts first. A server that does not answer is
left alone (whoever asks is told at once) until a try in the background succeeds; posts wait for it in a backlog, which
is emptied before calls go there again. Commands must be harmless to repeat.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol

from gateway.admission.observer import Observer, Operation
from gateway.admission.redis.backlog import Backlog, Post
from gateway.admission.redis.command import pack as pack_words
from gateway.admission.redis.connection import CommandRefused, is_elsewhere
from gateway.admission.redis.link import Link, LinkFailed, Outcome
from gateway.admission.redis.recent import Recent
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock

log = logging.getLogger(__name__)

# A post may wait this long for company before it gets a pipeline of its own.
FLUSH_AFTER_S = 0.005

# Where calls come fast, a pipeline begins this long after the one before it at the earliest, unless enough wait: each
# costs our loop and the server some 80 us together, whoever is in it. At 1,000 calls a second of a process that makes
# 0.18 round trips a call of 0.7 and adds 4 ms; from 2,000 on it adds less, because enough come sooner.
COMPANY_WITHIN_S = 0.006
ENOUGH = 8
# Fast: so many in that time, lately. Where fewer come nobody waits.
FAST = 4.5
_LATELY_S = 0.05

# Posted and asked commands in one pipeline, each: at 25 us a script it holds the server for some 10 ms at most.
MAX_BATCH = 250

# And of the backlog, where it is a file: reading and packing takes our own loop 26 us each.
LATE_BATCH = 100

# Off the path of calls: how long a try to come back may take, and the pause between tries.
RETURN_WITHIN_S = 5.0
RETURN_EVERY_S = 0.5

# How long stopping waits for posts to be delivered.
CLOSE_WITHIN_S = 2.0

# And for a replica to say that it has them, which takes it a millisecond; at most half the timeout.
COPIED_WITHIN_MS = 100


# What is asked: to do what, by which command, where the reply goes, and who takes it when nobody waits there any more.
Ask = tuple[Operation, bytes, asyncio.Future[Any], Callable[[Any], None] | None]


class Crossing(Protocol):
    """Whoever has several lanes, each to a server that has a part of the keys."""

    def ask_elsewhere(self, ask: Ask, error: str) -> None:
        """Take what this lane's server says is not its own, or not now."""

    def post_elsewhere(self, post: Any, error: str) -> None:
        """Take what this lane's server says is not its own, or not now."""

    def failed(self) -> None:
        """Hear that this lane's server is left alone."""


class Lane(Generic[Post]):
    """Owns the link: its queues, and whether the server is left alone. `pack` makes a post's command.

    `recent` is for a server that another may take over: what that may not know of is posted again, or is left in the
    backlog at the end. `crossing` is for one of several that have the keys between them; `place` is then what the log
    calls its server.
    """

    def __init__(
        self,
        link: Link,
        clock: Clock,
        *,
        timeout_s: float,
        observer: Observer,
        pack: Callable[[Post], bytes],
        backlog: Backlog[Post],
        recent: Recent[Post] | None = None,
        crossing: Crossing | None = None,
        place: str = "",
    ) -> None:
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._observer = observer
        self._loop = asyncio.get_running_loop()  # once: in Python 3.11 asking for it is a system call
        self._pack = pack
        self._backlog = backlog
        self._recent = recent
        self._crossing = crossing
        self._at = f" at {place}" if place else ""
        self._history = ""
        if recent is not None:
            self._link.lost = self._look_again
        self.up = True  # until the first try says otherwise, so that the first calls wait for it
        self._busy = True  # a pipeline is under way or about to be, or the server is away
        self._posts: list[Post] = []
        self._posted: list[Post] = []  # under way
        self._late: Sequence[Post] = ()  # under way, of the backlog
        self._asks: list[Ask] = []
        self._asked: list[Ask] = []  # under way
        self._started = 0.0
        self._pace = 0.0  # how many were asked in COMPANY_WITHIN_S, lately
        self._company: asyncio.TimerHandle | None = None
        self._exchanged = asyncio.Event()
        self._flush: asyncio.TimerHandle | None = None
        self._return: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """How many posts have no reply yet."""
        return len(self._posts) + len(self._posted) + len(self._backlog)

    def start(self) -> None:
        """Connect in the background, and carry commands from then on."""
        self._exchange()

    async def close(self) -> None:
        """Deliver what was posted within `CLOSE_WITHIN_S`, leave the rest in the backlog, and disconnect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                while self.pending:
                    self._exchanged.clear()
                    self._flush_now()
                    await self._exchanged.wait()
        if self._recent is not None and self._link.copied and not await self._copied():
            self._backlog.leave(self._recent.recall())
        for timer in (self._flush, self._return, self._company):
            if timer is not None:
                timer.cancel()
        await self._link.close()
        self._give_up(sent=True)
        await self._backlog.close()

    def ask(
        self, operation: Operation, command: bytes, _tag: str = "", *, late: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Queue `command`. Return where its reply comes within the timeout, or StoreUnavailable.

        `late` gets what comes, the exception too, when whoever waited has left, and so cancelled the future.

        Raises:
            StoreUnavailable: the server is known to be away.
        """
        if not self.up:
            raise StoreUnavailable(sent=False)
        reply = self._loop.create_future()
        self._asks.append((operation, command, reply, late))
        if not self._busy:
            self._busy = True
            if not self._waits_for_company():
                self._loop.call_soon(self._begin)  # with what else comes in this turn
        elif self._company is not None and len(self._asks) >= ENOUGH:
            self._company.cancel()
            self._company = None
            self._loop.call_soon(self._begin)
        return reply

    def take(self, ask: Ask) -> None:
        """Queue what was asked of another lane."""
        if not self.up:
            fail(ask, sent=False)
            return
        self._asks.append(ask)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._begin)

    async def _copied(self) -> bool:
        """Whether a replica has all that the server took on this connection."""
        if self._busy:
            return False
        self._busy = True
        within_ms = min(COPIED_WITHIN_MS, max(1, round(self._timeout_s * 500)))
        came: asyncio.Future[Outcome] = self._loop.create_future()
        self._link.exchange([pack_words(["WAIT", 1, within_ms])], came.set_result, within_s=self._timeout_s)
        outcome = await came
        if isinstance(outcome, LinkFailed) or self._link.history != self._history:
            return False
        return isinstance(outcome[0], int) and outcome[0] > 0

    def recall(self) -> list[Post]:
        """Return what the server took lately, and forget it: another has its keys, and may not know of it."""
        return [] if self._recent is None else self._recent.recall()

    def remember(self, posts: Sequence[Post]) -> None:
        """Know that the server took these."""
        if self._recent is not None:
            self._recent.add(posts)

    def post(self, post: Post) -> None:
        """Queue `post`: it goes ahead of what is asked next, or alone after a moment, or waits in the backlog."""
        if not self.up:
            self._backlog.keep([post])
            return
        self._posts.append(post)
        if not self._busy and self._flush is None:
            self._flush_later()

    def _flush_later(self) -> None:
        self._flush = self._loop.call_later(FLUSH_AFTER_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self._posts and not self._busy:
            self._carry()

    def _waits_for_company(self) -> bool:
        """Whether the next pipeline is worth waiting for. It begins by itself then."""
        if self._pace < FAST or len(self._asks) >= ENOUGH:
            return False
        wait_s = self._started + COMPANY_WITHIN_S - self._clock.monotonic()
        if wait_s > 0:
            self._company = self._loop.call_later(wait_s, self._begin)
        return wait_s > 0

    def _begin(self) -> None:
        self._company = None
        if self.up:  # closed meanwhile, otherwise
            self._carry()

    def _go_on(self) -> None:
        """Carry what came meanwhile. Posts alone may wait for company, but what waited too long already does not."""
        if self._backlog or (self._asks and not self._waits_for_company()):
            self._carry()
            return
        if self._asks:
            return
        if not self.up:
            log.warning("the limit store answers again%s", self._at)
        self.up, self._busy = True, False
        if self._posts and self._flush is None:
            self._flush_later()

    def _carry(self) -> None:
        self._busy = True
        self._late = self._backlog.oldest(LATE_BATCH)
        self._posted, self._asked = self._posts[:MAX_BATCH], self._asks[:MAX_BATCH]
        del self._posts[:MAX_BATCH], self._asks[:MAX_BATCH]
        self._exchange()

    def _exchange(self) -> None:
        """Exchange what is under way; nothing, to see whether the server is there."""
        now = self._clock.monotonic()
        passed_s, self._started = max(now - self._started, 1e-6), now
        lately = min(passed_s / _LATELY_S, 1)
        self._pace += lately * (len(self._asked) * COMPANY_WITHIN_S / passed_s - self._pace)
        commands = [self._pack(post) for posts in (self._late, self._posted) for post in posts]
        commands += [command for _, command, _, _ in self._asked]
        self._link.exchange(commands, self._came, within_s=self._timeout_s if self.up else RETURN_WITHIN_S)

    def _came(self, outcome: Outcome) -> None:
        operations = {operation for operation, _, _, _ in self._asked}
        if self._late or self._posted:
            operations.add("settle")
        if isinstance(outcome, LinkFailed):
            for operation in operations or {"connect"}:
                self._observer.store_failed(operation)
            self._failed(outcome)
            return
        took_s = self._clock.monotonic() - self._started
        for operation in operations:
            self._observer.store_answered(operation, took_s)
        if self._recent is not None:
            self._remember(self._recent)
        self._distribute(outcome)
        self._go_on()

    def _look_again(self) -> None:
        """See at once who serves now, for it may have to be told what it does not know."""
        if self.up and not self._busy:
            self._carry()

    def _remember(self, recent: Recent[Post]) -> None:
        """Remember what the server has taken; where it is another one, tell it what the last one had taken."""
        if self._link.history != self._history:
            self._history = self._link.history
            self._posts[:0] = recent.recall()
        recent.add([*self._late, *self._posted])

    def _distribute(self, replies: list[Any]) -> None:
        asked, posts = self._asked, [*self._late, *self._posted]
        if self._late:
            self._backlog.taken()
        if self._posted:
            came = zip(self._posted, replies[len(self._late) :], strict=False)
            self._backlog.arrived([post for post, reply in came if not isinstance(reply, CommandRefused)])
        self._late, self._posted, self._asked = (), [], []
        for post, reply in zip(posts, replies, strict=False):
            if isinstance(reply, CommandRefused):
                self._post_refused(post, reply)
        for ask, reply in zip(asked, replies[len(posts) :], strict=True):
            _, _, future, late = ask
            if isinstance(reply, CommandRefused):
                self._ask_refused(ask, reply)
            elif not future.cancelled():
                future.set_result(reply)
            elif late is not None:
                late(reply)
        self._exchanged.set()

    def _post_refused(self, post: Post, error: CommandRefused) -> None:
        if self._crossing is not None and is_elsewhere(error):
            self._crossing.post_elsewhere(post, str(error))
            return
        log.error("the limit store refused a settlement: %s", error)
        self._observer.store_failed("settle")
        self._observer.settlement_dropped()

    def _ask_refused(self, ask: Ask, error: CommandRefused) -> None:
        if self._crossing is not None and is_elsewhere(error):
            self._crossing.ask_elsewhere(ask, str(error))
            return
        log.error("the limit store refused to %s: %s", ask[0], error)
        self._observer.store_failed(ask[0])
        fail(ask, sent=True, refused=True)

    def _failed(self, failure: LinkFailed) -> None:
        """Leave the server alone, but for a try at once where it was up, and then again and again."""
        if self.up:
            log.warning("the limit store does not answer%s: %s", self._at, failure)
        wait_s = 0 if self.up else RETURN_EVERY_S
        self._give_up(sent=failure.sent)
        self._return = self._loop.call_later(wait_s, self._exchange)
        if self._crossing is not None:
            self._crossing.failed()

    def _give_up(self, *, sent: bool) -> None:
        """Let wait what was posted, and tell whoever waits that there is no answer, and from now on whoever comes."""
        self.up, self._busy = False, True
        posts, asked, asks = self._posted + self._posts, self._asked, self._asks
        self._late, self._posted, self._posts, self._asked, self._asks = (), [], [], [], []
        if posts:
            self._backlog.keep(posts)
        for ask in asked:
            fail(ask, sent=sent)
        for ask in asks:
            fail(ask, sent=False)


def fail(ask: Ask, *, sent: bool, refused: bool = False) -> None:
    """Tell whoever asked that there is no answer."""
    _, _, future, late = ask
    failure = StoreUnavailable(sent=sent, refused=refused)
    if not future.cancelled():
        future.set_exception(failure)
    elif late is not None:
        late(failure)
