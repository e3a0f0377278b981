"""How soon answers begin by each balance: simulated replicas in virtual time, chosen among by the gateway's own code.

A replica keeps the prompts it computed, the longest unused go first; it computes what it lacks of one prompt after the
other and generates for all calls at once, slower the more they are. The figures compare balances and foretell nothing.
"""

import heapq
import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.calls.prefix import Prefixes, prefixes_of
from gateway.clock import SystemClock
from gateway.config import PoolEntry
from gateway.routing.engine_load import EngineLoad
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica

BALANCES = ("random", "round_robin", "least_requests", "least_load", "prefix_affinity", "prefix_and_load")
REPLICAS = 16
TENANT = "acme"


class Engine(NamedTuple):
    """What a replica can do; about a model of 8 billion parameters on one large accelerator."""

    cache_tokens: int = 200_000
    prefill_per_s: float = 8000
    slots: int = 64
    step_s: float = 0.012  # generates a token for each call
    step_per_call_s: float = 0.0002


ENGINE = Engine()


class Load(NamedTuple):
    """Sessions that begin within `within_s`; each goes on for `turns` calls, `thinks_s` apart on average.

    Every session has one of `systems` beginnings of `system_tokens`. Those of an `alike` load also ask the same first.
    On each of the first `busy` replicas somebody else has `batch` calls under way all the time, past this gateway.
    """

    sessions: int = 1000
    within_s: float = 240
    turns: int = 6
    thinks_s: float = 10
    systems: int = 40
    system_tokens: int = 1500
    asked_tokens: int = 250
    answered_tokens: int = 200
    alike: bool = False
    busy: int = 0
    batch: int = 48


SHARED = Load()
# Nothing tells these apart, so the replica that their prefix means could get them all.
HOT = Load(sessions=6000, turns=1, systems=1, alike=True)
ALIKE = Load(systems=1, alike=True)
# What fills a quarter of the replicas cannot be seen here; only the engines know.
OTHERS = Load(busy=REPLICAS // 4)
LOADS: Mapping[str, Load] = {
    "shared prefixes": SHARED,
    "one hot prefix": HOT,
    "opened alike": ALIKE,
    "others' calls": OTHERS,
}
# How often engines are asked for their load, as `pools.*.load.interval` has it by default.
ASKED_EVERY_S = 1.0


class Result(NamedTuple):
    """Seconds to the first byte, and how much of all prompts' tokens a cache had."""

    p50_s: float
    p99_s: float
    cached: float


class Piece(NamedTuple):
    """A message of a conversation: the whole beginning up to it is what a cache knows it by."""

    name: tuple[int, ...]
    tokens: int


class Random:
    """No thought at all, to compare with."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, eligible: Sequence[Replica], prefixes: Prefixes) -> Replica:  # noqa: ARG002 it asks for none
        """Return any."""
        return self._chance.choice(eligible)


class Cache:
    """Pieces that were computed, the longest unused first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tokens = 0
        self._pieces: OrderedDict[tuple[int, ...], int] = OrderedDict()

    def take(self, prompt: Sequence[Piece]) -> int:
        """Return how many tokens of this prompt's beginning are there, then keep all of it."""
        there = sum(piece.tokens for piece in itertools.takewhile(lambda piece: piece.name in self._pieces, prompt))
        for piece in reversed(prompt):  # so that an end is forgotten before its beginning
            if piece.name not in self._pieces:
                self._tokens += piece.tokens
            self._pieces[piece.name] = piece.tokens
            self._pieces.move_to_end(piece.name)
        while self._tokens > self._most:
            self._tokens -= self._pieces.popitem(last=False)[1]
        return there


@dataclass(slots=True)
class Session:
    """A conversation: as the gateway sees it, and as caches do."""

    number: int
    messages: list[dict[str, str]]
    prompt: list[Piece]
    turns_left: int
    elsewhere: bool = False


@dataclass(slots=True)
class Asked:
    """A call that is at a replica."""

    session: Session
    at_s: float
    loan: ExitStack


@dataclass(slots=True)
class Simulated:
    """A replica's engine."""

    cache: Cache
    waiting: list[Asked] = field(default_factory=list)
    computing: bool = False
    generating: int = 0


class Simulation:
    """One load on one pool, until every session has ended."""

    def __init__(self, balance: str, load: Load, *, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._load, self._engine = load, ENGINE
        self._pool = _pool(balance, random.Random(seed))
        self._engines = {replica: Simulated(Cache(ENGINE.cache_tokens)) for replica in self._pool.replicas}
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._first_bytes_s: list[float] = []
        self._tokens = self._cached = 0
        self._sessions_left = load.sessions

    def run(self) -> Result:
        """Return what the calls met."""
        for session in _sessions(self._load, self._chance):
            self._later(self._chance.uniform(0, self._load.within_s), self._ask, session)
        for replica in self._pool.replicas[: self._load.busy]:
            for number in range(self._load.batch):
                self._later(self._chance.uniform(0, 1), self._ask_past, replica, -1 - number)
        if self._pool.load is not None:
            self._later(0, self._poll)
        while self._events:
            now, _, (act, *about) = heapq.heappop(self._events)
            act(now, *about)
        taken = sorted(self._first_bytes_s)
        return Result(taken[len(taken) // 2], taken[len(taken) * 99 // 100], self._cached / self._tokens)

    def _later(self, at_s: float, *act: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _ask(self, now: float, session: Session) -> None:
        loan = ExitStack()
        prefixes = prefixes_of({"messages": session.messages}, tenant=TENANT)
        replica = loan.enter_context(self._pool.lend(prefixes=prefixes))
        session.prompt.append(Piece((session.number, len(session.prompt)), self._size(self._load.asked_tokens)))
        self._engines[replica].waiting.append(Asked(session, now, loan))
        self._compute(now, replica)

    def _ask_past(self, now: float, replica: Replica, number: int) -> None:
        """Let somebody else call, without the gateway."""
        prompt = [Piece((number, int(now * 1e6)), self._size(self._load.system_tokens))]
        session = Session(number, [], prompt, turns_left=1, elsewhere=True)
        self._engines[replica].waiting.append(Asked(session, now, ExitStack()))
        self._compute(now, replica)

    def _poll(self, now: float) -> None:
        """Let every engine tell its load."""
        for replica, engine in self._engines.items():
            replica.told(EngineLoad(engine.generating, len(engine.waiting) + engine.computing))
        if self._sessions_left:
            self._later(now + ASKED_EVERY_S, self._poll)

    def _compute(self, now: float, replica: Replica) -> None:
        engine = self._engines[replica]
        if engine.computing or not engine.waiting or engine.generating >= self._engine.slots:
            return
        engine.computing = True
        asked = engine.waiting.pop(0)
        prompt = asked.session.prompt
        tokens, cached = sum(piece.tokens for piece in prompt), engine.cache.take(prompt)
        if not asked.session.elsewhere:
            self._tokens += tokens
            self._cached += cached
        self._later(now + (tokens - cached) / self._engine.prefill_per_s, self._generate, replica, asked)

    def _generate(self, now: float, replica: Replica, asked: Asked) -> None:
        engine = self._engines[replica]
        engine.computing = False
        engine.generating += 1
        step_s = self._engine.step_s + engine.generating * self._engine.step_per_call_s
        if not asked.session.elsewhere:
            self._first_bytes_s.append(now + step_s - asked.at_s)
        answer = self._size(self._load.answered_tokens)
        self._later(now + answer * step_s, self._end, replica, asked, answer)
        self._compute(now, replica)

    def _end(self, now: float, replica: Replica, asked: Asked, answer: int) -> None:
        asked.loan.close()
        session = asked.session
        self._engines[replica].generating -= 1
        if session.elsewhere:
            if self._sessions_left:
                self._ask_past(now, replica, session.number)
            return
        session.prompt.append(Piece((session.number, len(session.prompt)), answer))
        said = f"{session.number}, {session.turns_left}"
        session.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": said}]
        session.turns_left -= 1
        self._sessions_left -= not session.turns_left
        if session.turns_left:
            self._later(now + self._chance.expovariate(1 / self._load.thinks_s), self._ask, session)
        self._compute(now, replica)

    def _size(self, mean: int) -> int:
        return math.ceil(self._chance.expovariate(1 / mean))


def table() -> str:
    """Return every balance under every load, as Markdown."""
    lines = [
        "| load            | balance         | first byte p50 ms | p99 ms | cached % |",
        "|-----------------|-----------------|------------------:|-------:|---------:|",
    ]
    for name, load in LOADS.items():
        for balance in BALANCES:
            result = Simulation(balance, load).run()
            figures = f"{result.p50_s * 1000:17.0f} | {result.p99_s * 1000:6.0f} | {result.cached * 100:8.0f}"
            lines.append(f"| {name:15} | {balance:15} | {figures} |")
    return "\n".join(lines)


def _pool(balance: str, chance: random.Random) -> Pool:
    entry: dict[str, Any] = {"replicas": [f"http://10.0.0.{number}:8000" for number in range(REPLICAS)]}
    if balance == "prefix_and_load":
        entry |= {"balance": "prefix_affinity", "load": {}}
    elif balance != "random":
        entry["balance"] = balance
    pool = Pool("simulated", PoolEntry.model_validate(entry), chance, SystemClock())
    if balance == "random":
        pool.balance = Random(chance)
    return pool


def _sessions(load: Load, chance: random.Random) -> Iterator[Session]:
    for number in range(load.sessions):
        system = min(int(chance.expovariate(4 / load.systems)), load.systems - 1)  # some are used more than others
        first = "Hello" if load.alike else f"Question {number}"
        messages = [{"role": "system", "content": f"System {system}"}, {"role": "user", "content": first}]
        yield Session(number, messages, [Piece((-1, system), load.system_tokens)], load.turns)
