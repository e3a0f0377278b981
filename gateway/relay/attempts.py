"""All attempts of one call: replicas are tried until one begins to answer, and that answer is relayed.

Nothing is sent to the client before an answer begins, but comments where the pool asks for them; after that nothing is
tried again. How each attempt ended is told to its replica's breaker.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from gateway.calls.call import Call
from gateway.calls.edits import ask_for_usage, rename_model
from gateway.client.answer import Answer, Fields
from gateway.client.deadline import TOO_LATE
from gateway.client.request import Request
from gateway.clock import Clock
from gateway.config import Priority
from gateway.errors import BadRequest, DeadlinePassed, Draining, NoReplicaAvailable, Overloaded, Unavailable
from gateway.relay.exchange import Exchange
from gateway.relay.failure import Failure, is_fault, refusal_of
from gateway.relay.keep_alive import KeepAlive
from gateway.relay.outcome import BrokenBy, Outcome
from gateway.relay.request import build
from gateway.relay.stream import Stream
from gateway.relay.unasked import Asking, Unasked, asking
from gateway.relay.upstream import Upstream
from gateway.relay.whole import Whole
from gateway.routing.catalog import Model
from gateway.routing.loan import Loan
from gateway.routing.pool import Pool
from gateway.routing.replica import Replica
from gateway.routing.turn import Observer as TurnObserver
from gateway.routing.turn import Turn
from gateway.routing.waiting_room import WaitingRoom

# How engines name what they refuse; its members may follow.
_USAGE_OPTIONS = "stream_options"
# After these no pause helps: nobody listens there, or it was given up only because another is up.
_AT_ONCE = frozenset({"connect", "found_down"})


class Observer(TurnObserver, Protocol):
    """Who is told of attempts and streams, for metrics."""

    def attempt(self, pool: str, replica: str, *, result: str) -> None:
        """An attempt ended: answered, refused (the call is wrong), or a `Failure`'s reason."""

    def retry_refused(self, pool: str) -> None:
        """A call was not tried again: the pool's retries are used up."""

    def stream_opened(self, model: str | None) -> Callable[[], None]:
        """A stream is being relayed from now on, until what is returned is called."""


class Attempts:
    """The attempts of one call. Times are the clock's monotonic seconds; after `deadline_at` none is begun."""

    __slots__ = (
        "_call",
        "_clock",
        "_cut",
        "_deadline_at",
        "_earlier",
        "_exchange",
        "_keep_alive",
        "_model",
        "_observer",
        "_priority",
        "_tenant",
        "_turn",
        "_upstream",
        "asked",
        "asked_at",
        "failed",
        "first_byte_at",
        "tried",
        "waited_unasked_s",
    )

    def __init__(
        self,
        upstream: Upstream,
        call: Call,
        model: Model,
        *,
        clock: Clock,
        observer: Observer,
        deadline_at: float | None = None,
        tenant: str = "",
        priority: Priority = "normal",
    ) -> None:
        self.tried: list[Replica] = []  # of the pool that is asked now
        self.failed: Failure | None = None  # the last that did
        self.asked = False  # an engine may have seen the call
        self.asked_at: float | None = None  # when the first was to be connected to
        self.first_byte_at: float | None = None
        self.waited_unasked_s = 0.0
        self._tenant = tenant
        self._priority: Priority = priority
        self._turn: Turn | None = None  # where it had to ask for one
        self._upstream = upstream
        self._call = call
        self._model = model
        self._clock = clock
        self._observer = observer
        self._deadline_at = deadline_at
        self._earlier: int | None = None  # how many replicas were tried before it turned to another pool, if it did
        self._exchange: Exchange | None = None
        self._keep_alive: KeepAlive | None = None
        self._cut = False

    async def run(self, request: Request, answer: Answer, *, inference_id: str, fields: Fields) -> None:
        """Relay the first answer that a replica begins.

        Raises:
            BadRequest: an engine says that the call itself is wrong.
            NoReplicaAvailable, Overloaded: no replica may be asked.
            Overloaded, UpstreamError, UpstreamTimeout: none that was asked answered.
            DeadlinePassed: the client's deadline did before one answered.
            Draining: the gateway stopped before one did.
        """
        if self._call.stream and self._model.pool.keep_alive_comments is not None:
            self._comment(answer, fields, every_s=self._model.pool.keep_alive_comments)
        fields += self._model.told
        failures: list[Failure] = []
        asks = True
        pool = self._model.pool
        pool.retries.calls += 1
        while loan := self._lend(failures) if pool.room is None else await self._lend_in_turn(pool.room, failures):
            with loan as replica:
                self.tried.append(replica)
                asked = self._asking(replica) if asks else None
                reading = self._reading(replica, asked)
                with Exchange(
                    self._upstream,
                    replica,
                    self._model.timeouts,
                    reading=reading,
                    clock=self._clock,
                    deadline_at=self._deadline_at,
                    keep_alive=self._keep_alive,
                    elsewhere=partial(
                        _has_another, self._model, self.tried, self._earlier
                    ),  # of us it would be a cycle
                ) as exchange:
                    self._exchange = exchange
                    if self.asked_at is None:
                        self.asked_at, self.waited_unasked_s = self._clock.monotonic(), self.waited_s or 0.0
                    # Not kept in a name: a stream may last for minutes, and a message with pictures has megabytes.
                    verdict = await exchange.begin(self._message(replica, asked, request, inference_id=inference_id))
                    self.asked = self.asked or exchange.asked
                    self._observe(replica, verdict)
                    if verdict is None:
                        loan.began()
                        if not asks:  # asking was all that was wrong with it
                            self._model.pool.tells_usage = False
                        self.first_byte_at = exchange.first_byte_at
                        if self._call.stream:
                            _tell_end(loan, await self._relay(exchange, answer, fields))
                        else:
                            exchange.deliver(answer, fields)
                            loan.ended_well()
                        replica.learn(reading.fingerprint)
                        return
                    self._exchange = None
                    if isinstance(verdict, BadRequest):
                        if asked is None or _USAGE_OPTIONS not in f"{verdict.param} {verdict.message}":
                            raise verdict
                        asks = False  # perhaps for what we asked on the client's behalf: once more without
                        self.tried.remove(replica)
                    else:
                        _tell_failure(loan, verdict)
                        failures.append(verdict)
            if not isinstance(verdict, BadRequest) and not await self._may_retry(failures):
                break
        raise refusal_of(failures)

    def turn_to(self, model: Model) -> None:
        """Have the next `run` ask the replicas of another model or pool. Nothing of an answer was sent yet."""
        self._earlier = self.made
        self._model = model
        self.tried = []

    @property
    def pool(self) -> Pool:
        """Whose replicas are asked now, or were last."""
        return self._model.pool

    @property
    def made(self) -> int:
        """How many replicas were tried."""
        return len(self.tried) + (self._earlier or 0)

    @property
    def over(self) -> bool:
        """Whether no other attempt may be begun: the gateway stops, or the client's deadline has passed."""
        return self._cut or (self._deadline_at is not None and self._clock.monotonic() >= self._deadline_at)

    def cut(self) -> None:
        """End the call visibly: the gateway stops."""
        self._cut = True
        if self._exchange is not None and not self._exchange.over:
            self._exchange.cut("draining")
        if self._turn is not None:
            self._turn.end(_draining())

    @property
    def waited_s(self) -> float | None:
        """How long it waited for a replica to have room; None where it never had to."""
        return None if self._turn is None else self._turn.waited_s

    @property
    def only_comments(self) -> bool:
        """Of an answer that is under way: whether nothing but comments was sent yet; then it can end in a refusal."""
        return self._keep_alive is not None and self.first_byte_at is None

    def outcome(self, *, client_gone: bool) -> Outcome | None:
        """Return how the call ended at its engine; None if no engine can have generated anything."""
        if self._exchange is None or not self._exchange.asked:
            return None
        exchange, call = self._exchange, self._call
        outcome = exchange.reading.outcome(client_gone=client_gone)
        if exchange.left_unread:
            outcome = outcome._replace(ending="client_gone")
        if outcome.usage_missing is None and not exchange.held_up:
            exchange.replica.pace.note(outcome.usage.completion, exchange.told_s, choices=call.generations)
        elif isinstance(exchange.reading, Whole) and outcome.ending == "client_gone":
            outcome = outcome._replace(usage=outcome.usage._replace(completion=self._unseen(exchange)))
        return outcome

    def _unseen(self, exchange: Exchange) -> int:
        """Estimate what there is of an answer that is not here: by its replica's pace, what was reserved at most."""
        choices = self._call.generations
        return min(self._most_output, exchange.replica.pace.tokens_in(exchange.asked_s, choices=choices))

    def _comment(self, answer: Answer, fields: Fields, *, every_s: float) -> None:
        """See that the client gets comments from now on, if that was not seen to before."""
        if self._keep_alive is None:
            # Their head goes out before it is known which model answers, where there are several.
            alone = self._earlier is None and not self._model.entry.fallbacks
            named = fields + self._model.told if alone else fields
            self._keep_alive = KeepAlive(answer, named, every_s=every_s, now=self._upstream.loop.time())

    async def _may_retry(self, failures: list[Failure]) -> bool:
        """Return whether the pool has a retry for this call, after the pause before it; `_lend` decides the rest."""
        pool, last = self._model.pool, failures[-1].reason
        if self._cut or last == "client_deadline" or not _could_be_lent(pool, self.tried):
            return True
        if not pool.retries.take(pool.now()):
            self._observer.retry_refused(pool.name)
            return False
        if last not in _AT_ONCE:
            pause_s = pool.retries.pause_s(len(failures))
            if self._deadline_at is not None:
                pause_s = min(pause_s, self._deadline_at - self._clock.monotonic())
            await asyncio.sleep(pause_s)
        return True

    @property
    def _most_output(self) -> int:
        """What was reserved for the answer: what the client declared, or what the model's entry says."""
        declared, choices = self._call.output_tokens, self._call.generations
        return (self._model.entry.default_output_tokens if declared is None else declared) * choices

    def _may_begin(self, failures: list[Failure]) -> bool:
        """Return whether the pool allows one attempt more, where nothing else speaks against it."""
        if self._cut:
            raise _draining()
        if self._deadline_at is not None and self._too_late(self._deadline_at, failures):
            raise DeadlinePassed(TOO_LATE)
        return len(self.tried) < self._model.pool.attempts

    async def _lend_in_turn(self, room: WaitingRoom, failures: list[Failure]) -> Loan | None:
        """Do what `_lend` does, at a pool where calls may have to wait."""
        if not self._may_begin(failures):
            return None
        if self._turn is None:
            tokens = self._call.input_tokens + self._most_output
            self._turn = Turn(self._tenant, self._priority, tokens=tokens, observer=self._observer)
        left_s = math.inf if self._deadline_at is None else self._deadline_at - self._clock.monotonic()
        try:
            loan = await self._turn.lend(
                self._model.pool, room, tried=self.tried, prefixes=self._call.prefixes, left_s=left_s
            )
        except (NoReplicaAvailable, Overloaded):
            if failures:
                return None
            raise
        if self._cut:  # in the moment in which it was lent
            loan.give_back()
            raise _draining()
        return loan

    def _lend(self, failures: list[Failure]) -> Loan | None:
        pool = self._model.pool
        if not self._may_begin(failures):
            return None
        try:
            return pool.lend(tried=self.tried, prefixes=self._call.prefixes)
        except Unavailable:
            if failures:
                return None
            raise

    def _too_late(self, deadline_at: float, failures: list[Failure]) -> bool:
        ended_the_last = bool(failures) and failures[-1].reason == "client_deadline"  # the loop's time may lag behind
        return ended_the_last or self._clock.monotonic() >= deadline_at

    def _asking(self, replica: Replica) -> Asking | None:
        pool = self._model.pool
        return asking(self._call, pool.engine, replica) if pool.tells_usage else None

    def _message(self, replica: Replica, asked: Asking | None, request: Request, *, inference_id: str) -> bytes:
        name, body = self._model.name_at(replica), self._call.body
        if name != self._call.model:
            body = rename_model(body, name)
        if asked is not None:
            body = ask_for_usage(body, continuous=asked.running)
        return build(replica, self._call.endpoint, body, inference_id=inference_id, client=request.fields)

    def _reading(self, replica: Replica, asked: Asking | None) -> Stream | Whole:
        engine = self._model.pool.engine
        if not self._call.stream:
            return Whole(self._call, engine=engine)
        return Stream(
            self._call, engine=engine, unasked=None if asked is None else Unasked(asked, self._call, engine, replica)
        )

    async def _relay(self, exchange: Exchange, answer: Answer, fields: Fields) -> BrokenBy | None:
        closed = self._observer.stream_opened(self._model.name)
        try:
            return await exchange.relay(answer, fields)
        finally:
            closed()

    def _observe(self, replica: Replica, verdict: Failure | BadRequest | None) -> None:
        if isinstance(verdict, Failure):
            self.failed = verdict
        result = verdict.reason if isinstance(verdict, Failure) else "answered" if verdict is None else "refused"
        self._observer.attempt(self._model.pool.name, replica.name, result=result)


def _draining() -> Draining:
    return Draining("This gateway is restarting; send the call again.")


def _has_another(model: Model, tried: list[Replica], earlier: int | None) -> bool:
    """Whether one attempt more will be made at a replica that was not tried, if this one fails.

    It may be in another pool of the model, if this one is the first.
    """
    pool = model.pool
    if _could_try_another(pool, tried) and pool.retries.left(pool.now()):
        return True
    return earlier is None and any(other.pool.has_another(tried=()) for other in model.others)


def _could_try_another(pool: Pool, tried: list[Replica]) -> bool:
    return len(tried) < pool.attempts and pool.has_another(tried=tried)


def _could_be_lent(pool: Pool, tried: list[Replica]) -> bool:
    """Whether the pool may lend one more: where calls wait for replicas, one that is held back now will do."""
    if pool.room is None:
        return _could_try_another(pool, tried)
    return len(tried) < pool.attempts and pool.could_lend(tried)


def _tell_failure(loan: Loan, failure: Failure) -> None:
    if failure.is_fault:
        loan.fault(failure.reason)
    elif failure.retry_after_s is not None:
        loan.full(failure.retry_after_s)


def _tell_end(loan: Loan, ended_by: BrokenBy | None) -> None:
    if ended_by is None:
        loan.ended_well()
    elif is_fault(ended_by):
        loan.fault(ended_by)
