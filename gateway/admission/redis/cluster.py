"""The masters of a cluster, a lane to each: commands go to whoever has their slot, settlements that find nobody wait.

Which master has which slots is asked at the start, whenever a node says that it is another, and while one is away. A
slot that gets another master may have lost its last writes: what was settled there lately is sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from gateway import background
from gateway.admission.observer import Observer, Operation
from gateway.admission.redis.backlog import Backlog
from gateway.admission.redis.cluster_map import ask_map
from gateway.admission.redis.connection import ALONE_IN_CLUSTER, ServerFailed
from gateway.admission.redis.lane import LATE_BATCH, Ask, Lane, fail
from gateway.admission.redis.link import Link
from gateway.admission.redis.recent import Recent
from gateway.admission.redis.scripts import Prepared
from gateway.admission.redis.server import Master, Server
from gateway.admission.redis.slots import SLOTS, Range, moved, slot_of, tags
from gateway.admission.reservation import Settlement
from gateway.admission.store import StoreUnavailable
from gateway.clock import Clock
from gateway.config.store_url import Address, StoreUrl

log = logging.getLogger(__name__)

# While a master is away, and while all is well.
_LOOK_EVERY_S = 0.25
_LOOK_SELDOM_S = 30.0
# However many calls hear of a change.
_LOOK_AGAIN_AFTER_S = 0.05

# A slot that is being moved key by key takes no call until that is over: some milliseconds, if it is small.
_AGAIN_AFTER_S = 0.01


class Cluster:
    """Owns the lanes. `pack` makes a settlement's command, `split` its parts where it has keys in several slots.

    `tries` are commands that fail where those of calls would, and change nothing, with keys of a given tag.
    """

    def __init__(
        self,
        url: StoreUrl,
        scripts: Sequence[Prepared],
        clock: Clock,
        *,
        timeout_s: float,
        observer: Observer,
        pack: Callable[[Settlement], bytes],
        split: Callable[[Settlement], Sequence[Settlement]],
        tries: Callable[[str], Sequence[bytes]],
        backlog: Backlog[Settlement],
    ) -> None:
        self._url = url
        self._scripts = scripts
        self._clock = clock
        self._timeout_s = timeout_s
        self._observer = observer
        self._pack = pack
        self._split = split
        self._tries = tries
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._nodes = set(url.places)
        self._lanes: dict[Address, Lane[Settlement]] = {}
        self._owners: list[Lane[Settlement] | None] = [None] * SLOTS
        self._early: list[tuple[int, Ask]] | None = []  # what is asked before anything is known
        self._waiting: list[Settlement] = []  # for slots that are being moved
        self._behind: set[int] = set()  # slots of which something in the backlog is put aside
        self._deadlines: WeakKeyDictionary[asyncio.Future[Any], float] = WeakKeyDictionary()
        self._doubt = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()  # lanes to nodes that are masters no more
        self._told = False  # in the log, that no node answers

    @property
    def up(self) -> bool:
        """Whether any master answered when it was last asked."""
        return self._early is not None or any(lane.up for lane in self._lanes.values())

    @property
    def whole(self) -> bool:
        """Whether every slot has a master that answered when it was last asked."""
        return None not in self._owners and all(lane.up for lane in self._lanes.values())

    @property
    def pending(self) -> int:
        """How many settlements have no reply yet."""
        return sum(lane.pending for lane in self._lanes.values()) + len(self._waiting) + len(self._backlog)

    def start(self) -> None:
        """Find out who has which slots, and connect to them, in the background."""
        self._watching = background.begin(self._watch, name="limit store cluster")
        self._loop.call_later(self._timeout_s, self._open)

    async def close(self) -> None:
        """Deliver what was posted, within a lane's bound, leave the rest in the backlog, and disconnect."""
        self._open()
        await background.end(self._watching)
        await asyncio.gather(*[lane.close() for lane in self._lanes.values()], *self._leaving)
        self._backlog.keep(self._waiting)
        await self._backlog.close()

    def ask(
        self, operation: Operation, command: bytes, tag: str, *, late: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Ask the master of the tag's slot, as `Lane.ask`.

        Raises:
            StoreUnavailable: that is known to be away, or not known at all.
        """
        slot = slot_of(tag)
        lane = self._owners[slot]
        if lane is not None:
            return lane.ask(operation, command, tag, late=late)
        if self._early is None:
            raise StoreUnavailable(sent=False)
        reply = self._loop.create_future()
        self._early.append((slot, (operation, command, reply, late)))
        return reply

    def post(self, settlement: Settlement) -> None:
        """Post to the master of its slot, as `Lane.post`."""
        lane = self._owners[slot_of(settlement.account.tag)]
        if lane is not None:
            lane.post(settlement)
        else:
            self.keep([settlement])

    def keep(self, settlements: Sequence[Settlement]) -> None:
        """Let `settlements` wait until their masters answer."""
        self._backlog.keep(settlements)
        self.doubt()

    def arrived(self, settlements: Sequence[Settlement]) -> None:
        """Hear that a master answered to these."""
        self._backlog.arrived(settlements)

    def leave(self, settlements: Sequence[Settlement]) -> None:
        """Have `settlements`, which a master took, kept for whoever comes after this process."""
        self._backlog.leave(settlements)

    def doubt(self) -> None:
        """Ask again who has which slots."""
        self._doubt.set()

    def ask_elsewhere(self, ask: Ask, error: str, *, lane: Lane[Settlement], place: Address) -> None:
        """Ask whom a node named in the place of `lane`, or `lane` again in a moment; not for ever."""
        now_s = self._clock.monotonic()
        if now_s > self._deadlines.setdefault(ask[2], now_s + self._timeout_s):
            fail(ask, sent=False)
        elif (to := moved(error, asked=place)) is None:
            self._loop.call_later(_AGAIN_AFTER_S, lane.take, ask)
        else:
            self._believe(*to).take(ask)

    def post_elsewhere(self, settlement: Settlement, error: str, *, place: Address) -> None:
        """Post to whom a node named, or again in a moment."""
        if (to := moved(error, asked=place)) is not None:
            self._believe(*to).post(settlement)
            return
        if not self._waiting:
            self._loop.call_later(_AGAIN_AFTER_S, self._post_again)
        self._waiting.append(settlement)

    def _post_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for settlement in waiting:
            self.post(settlement)

    async def _watch(self) -> None:
        while True:
            self._doubt.clear()
            try:
                self._apply(*await ask_map(self._url, self._nodes))
                self._told = False
                self._open()
            except (OSError, ServerFailed) as failure:
                self._observer.store_failed("connect")
                if not self._told:
                    log.warning("no node of the limit store's cluster says who has which keys: %s", failure)
                self._told = True
            if any(lane.up for lane in self._lanes.values()):
                await self._deliver()
            quiet = self.whole and not self._backlog
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SELDOM_S if quiet else _LOOK_EVERY_S):
                    await self._doubt.wait()
            await asyncio.sleep(_LOOK_AGAIN_AFTER_S)

    def _open(self) -> None:
        """From now on nobody waits for what is not known."""
        early, self._early = self._early or [], None
        for slot, ask in early:
            lane = self._owners[slot]
            if lane is None:
                fail(ask, sent=False)
            else:
                lane.take(ask)

    async def _deliver(self) -> None:
        """Deliver what waits. Where its master is away it steps aside, and so does what is behind it in that slot."""
        if any(self._answers(slot) for slot in self._behind):
            self._behind.clear()
            self._backlog.again()
        while waiting := self._backlog.oldest(LATE_BATCH):
            parts = [(number, part) for number, one in enumerate(waiting) for part in self._split(one)]
            delivered = await asyncio.gather(*[self._delivered(part) for _, part in parts])
            pairs = zip(parts, delivered, strict=True)
            self._backlog.taken(aside={number for (number, _), done in pairs if not done})

    def _answers(self, slot: int) -> bool:
        lane = self._owners[slot]
        return lane is not None and lane.up

    async def _delivered(self, settlement: Settlement) -> bool:
        tag = settlement.account.tag
        slot = slot_of(tag)
        if slot in self._behind or not self._answers(slot):
            self._behind.add(slot)
            return False
        try:
            await self.ask("settle", self._pack(settlement), tag)
        except StoreUnavailable as failure:
            if failure.refused:
                self._observer.settlement_dropped()
            else:
                self._behind.add(slot)
            return failure.refused
        lane = self._owners[slot]
        if lane is not None:
            lane.remember([settlement])
        return True

    def _believe(self, slot: int, place: Address) -> Lane[Settlement]:
        """Take a node's word for it that a slot is there, until all is asked for."""
        self.doubt()
        self._nodes.add(place)
        lane = self._lane(place)
        if self._owners[slot] is not lane:
            owners = self._owners.copy()
            owners[slot] = lane
            self._change(owners)
        return lane

    def _apply(self, ranges: Sequence[Range], nodes: set[Address]) -> None:
        owners: list[Lane[Settlement] | None] = [None] * SLOTS
        for start, end, place in ranges:
            owners[start:end] = [self._lane(place)] * (end - start)
        self._nodes = nodes | set(self._url.places)
        self._change(owners)
        serving = set(owners)
        for place, lane in list(self._lanes.items()):
            if lane not in serving:
                del self._lanes[place]
                leaving = self._loop.create_task(self._leave(lane), name="limit store node")
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, lane: Lane[Settlement]) -> None:
        """Let a lane go. A master that does not know yet that it is none takes settlements that will be lost."""
        await lane.close()
        for settlement in lane.recall():
            self.post(settlement)

    def _change(self, owners: list[Lane[Settlement] | None]) -> None:
        """Give slots to others, who may not know of what was settled there lately."""
        losers = {before for before, after in zip(self._owners, owners, strict=True) if before is not after}
        self._owners = owners
        for lane in losers:
            if lane is None:
                continue
            for settlement in lane.recall():
                if owners[slot_of(settlement.account.tag)] is lane:
                    lane.remember([settlement])
                else:
                    self.post(settlement)

    def _lane(self, place: Address) -> Lane[Settlement]:
        lane = self._lanes.get(place)
        if lane is None:
            side = _Side(self, place)
            server = Server(
                self._url.server(place), self._scripts, last=lambda: self._tries_of(place), alone=ALONE_IN_CLUSTER
            )
            lane = side.lane = self._lanes[place] = Lane(
                Link(Master(server), self._clock),
                self._clock,
                timeout_s=self._timeout_s,
                observer=self._observer,
                pack=self._pack,
                backlog=side,
                recent=Recent(self._clock),
                crossing=side,
                place="{}:{}".format(*place),
            )
            lane.start()
        return lane

    def _tries_of(self, place: Address) -> Sequence[bytes]:
        """Return what tries whether a node takes writes, in a slot of its own."""
        lane = self._lanes.get(place)
        return next((self._tries(tag) for tag, slot in tags() if self._owners[slot] is lane), ())


class _Side:
    """The cluster as one lane sees it: its backlog, and who knows of the others."""

    def __init__(self, cluster: Cluster, place: Address) -> None:
        self.lane: Lane[Settlement] | None = None
        self._cluster = cluster
        self._place = place

    def ask_elsewhere(self, ask: Ask, error: str) -> None:
        assert self.lane is not None
        self._cluster.ask_elsewhere(ask, error, lane=self.lane, place=self._place)

    def post_elsewhere(self, post: Settlement, error: str) -> None:
        self._cluster.post_elsewhere(post, error, place=self._place)

    def failed(self) -> None:
        self._cluster.doubt()

    def __len__(self) -> int:
        return 0

    def keep(self, posts: Sequence[Settlement]) -> None:
        self._cluster.keep(posts)

    def note(self, post: Settlement) -> None:
        """Nothing is noted here: the cluster's own backlog is told."""

    def arrived(self, posts: Sequence[Settlement]) -> None:
        self._cluster.arrived(posts)

    def oldest(self, at_most: int) -> Sequence[Settlement]:  # noqa: ARG002 nothing waits here
        return ()

    def leave(self, posts: Sequence[Settlement]) -> None:
        self._cluster.leave(posts)

    def taken(self, aside: Collection[int] = ()) -> None:
        """Nothing was."""

    def again(self) -> None:
        """Nothing is aside."""

    async def close(self) -> None:
        """Nothing ends: the cluster's own backlog does."""
