"""One lane of pipelines to the shared store: commands in, each reply to whoever waits for it.

What comes while a pipeline is under way goes together in the next one, posted commands first. A server that does not
answer is left alone (whoever asks is told at once) until a try in the background succeeds; posted commands wait for it.
Commands must be harmless to repeat.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from gateway.admission.link import Link, LinkFailed
from gateway.admission.observer import Observer, Operation
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock

log = logging.getLogger(__name__)

# A posted command may wait this long for company before it gets a pipeline of its own.
FLUSH_AFTER_S = 0.005

# Commands kept while the server is away: about a minute of 1000 calls a second, in some 30 MB.
MAX_PENDING = 50_000

# Posted and asked commands in one pipeline, each: at 25 us a script it holds the server for some 10 ms at most.
MAX_BATCH = 250

# Off the path of calls: how long a try to come back may take, and the pause between tries.
RETURN_WITHIN_S = 5.0
RETURN_EVERY_S = 0.5

# How long stopping waits for posted commands to be delivered.
CLOSE_WITHIN_S = 2.0


@dataclass(slots=True, eq=False)
class Ask:
    """A command whose reply somebody waits for."""

    operation: Operation
    command: bytes
    reply: asyncio.Future[Any]

    def kept(self) -> asyncio.Future[Any]:
        """Return where the reply goes: a new future when whoever waited has left and so cancelled theirs."""
        if self.reply.cancelled():
            self.reply = self.reply.get_loop().create_future()
        return self.reply


class Lane:
    """Owns the link, and the task that is the only one to use it."""

    def __init__(self, link: Link, clock: Clock, *, timeout_s: float, observer: Observer) -> None:
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._observer = observer
        self.up = True  # until the first try says otherwise, so that the first calls wait for it
        self._asks: list[Ask] = []
        self._asked: list[Ask] = []  # under way
        self._posts: deque[bytes] = deque()
        self._posted: list[bytes] = []  # under way
        self._work = asyncio.Event()
        self._exchanged = asyncio.Event()
        self._flush: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """How many posted commands have no reply yet."""
        return len(self._posts) + len(self._posted)

    def start(self) -> None:
        """Connect in the background, and carry commands from then on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="limit store")
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        """Deliver what was posted within `CLOSE_WITHIN_S`, count the rest as dropped, and disconnect."""
        self._work.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                while self.pending:
                    self._exchanged.clear()
                    await self._exchanged.wait()
        if self._flush is not None:
            self._flush.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for _ in self._posts:
            self._observer.settlement_dropped()

    def ask(self, operation: Operation, command: bytes) -> Ask:
        """Queue `command`; its reply comes within the timeout, or StoreUnavailable.

        Raises:
            StoreUnavailable: the server is known to be away.
        """
        if not self.up:
            raise StoreUnavailable(sent=False)
        ask = Ask(operation, command, asyncio.get_running_loop().create_future())
        self._asks.append(ask)
        self._work.set()
        return ask

    def withdraw(self, ask: Ask) -> bool:
        """Take `ask` back. Return whether it was still here: otherwise its reply comes all the same."""
        if ask not in self._asks:
            return False
        self._asks.remove(ask)
        return True

    def post(self, command: bytes) -> None:
        """Queue `command`: it goes ahead of what is asked next, or alone after a moment; the oldest may be dropped."""
        if len(self._posts) >= MAX_PENDING:
            self._posts.popleft()
            self._observer.settlement_dropped()
        self._posts.append(command)
        if self._flush is None and not (self._asks or self._asked or self._posted):  # it goes with those, or after them
            self._flush = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._work.set()

    async def _run(self) -> None:
        """Carry for as long as the server answers; while it does not, try again and again."""
        within_s = self._timeout_s
        try:
            while True:
                if await self._come_up(within_s):
                    await self._carry()
                else:
                    await asyncio.sleep(RETURN_EVERY_S)
                within_s = RETURN_WITHIN_S
        finally:
            self._give_up(sent=True)
            await self._link.close()

    async def _come_up(self, within_s: float) -> bool:
        """Connect, and deliver what was posted meanwhile: until that is done, calls are not held up by it."""
        try:
            await self._link.open(within_s=within_s)
        except LinkFailed as failure:
            self._failed(["connect"], failure)
            return False
        while self._posts and not self.up:
            if not await self._exchange(within_s):
                return False
        if not self.up:
            log.warning("the limit store answers again")
        self.up = True
        return True

    async def _carry(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._posts or self._asks:
                if not await self._exchange(self._timeout_s):
                    return

    async def _exchange(self, within_s: float) -> bool:
        """Exchange one pipeline. Return whether the server answered."""
        if len(self._posts) <= MAX_BATCH:
            self._posted, self._posts = list(self._posts), deque()
        else:
            self._posted = [self._posts.popleft() for _ in range(MAX_BATCH)]
        self._asked, self._asks = self._asks[:MAX_BATCH], self._asks[MAX_BATCH:]
        operations = {ask.operation for ask in self._asked}
        if self._posted:
            operations.add("settle")
        started = self._clock.monotonic()
        commands = [*self._posted, *[ask.command for ask in self._asked]]
        try:
            replies = await self._link.exchange(commands, within_s=within_s)
        except LinkFailed as failure:
            self._failed(operations, failure)
            return False
        took_s = self._clock.monotonic() - started
        for operation in operations:
            self._observer.store_answered(operation, took_s)
        self._distribute(replies)
        return True

    def _distribute(self, replies: list[Any]) -> None:
        posted, asked = self._posted, self._asked
        self._posted, self._asked = [], []
        for reply in replies[: len(posted)]:
            if isinstance(reply, ResponseError):
                log.error("the limit store refused a settlement: %s", reply)
                self._observer.store_failed("settle")
                self._observer.settlement_dropped()
        for ask, reply in zip(asked, replies[len(posted) :], strict=True):
            if isinstance(reply, ResponseError):
                log.error("the limit store refused to %s: %s", ask.operation, reply)
                self._observer.store_failed(ask.operation)
                ask.kept().set_exception(StoreUnavailable(sent=True))
            else:
                ask.kept().set_result(reply)
        self._exchanged.set()

    def _failed(self, operations: Iterable[Operation], failure: LinkFailed) -> None:
        if self.up:
            log.warning("the limit store does not answer: %s", failure)
        for operation in operations:
            self._observer.store_failed(operation)
        self._give_up(sent=failure.sent)

    def _give_up(self, *, sent: bool) -> None:
        """Keep what was posted, and tell whoever waits that there is no answer, and from now on whoever comes."""
        self.up = False
        self._posts.extendleft(reversed(self._posted))
        for ask in self._asked:
            ask.kept().set_exception(StoreUnavailable(sent=sent))
        for ask in self._asks:
            ask.kept().set_exception(StoreUnavailable(sent=False))
        self._posted, self._asked, self._asks = [], [], []


def _report(task: asyncio.Task[None]) -> None:
    """Log the defect that ended the lane's task: from then on the store is away, and nobody would know why."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the limit store is given up", exc_info=task.exception())
