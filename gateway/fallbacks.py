"""What becomes of a call that its pool cannot answer: the model's other pools are asked, then its fallback models.

One call has one permit, whoever answers: it is charged for that one, once. What its principal may not use, what has not
what the call asks for, and what a limit of its own keeps it from is passed over without a word.
"""

from collections.abc import Awaitable, Callable, Iterable

from gateway.admission.admission import Admission
from gateway.admission.permit import Permit
from gateway.calls.call import Call
from gateway.errors import (
    BadRequest,
    DeadlinePassed,
    Draining,
    LimitsUnavailable,
    NoReplicaAvailable,
    Overloaded,
    Refusal,
    TooMany,
    UpstreamFailed,
)
from gateway.identity.principal import Principal
from gateway.routing.catalog import Model
from gateway.telemetry.metrics import Metrics
from gateway.trail import Trail

# A pool cannot answer: nothing of an answer was sent, and the call itself is not at fault.
CANNOT_ANSWER = (NoReplicaAvailable, Overloaded, UpstreamFailed)
# Nobody else can either: the call is the asked model's again, unanswered.
_TIME_IS_UP = (DeadlinePassed, Draining)


class Fallbacks:
    """Turns calls to whoever is next."""

    def __init__(self, admission: Admission, metrics: Metrics) -> None:
        self._admission = admission
        self._metrics = metrics

    async def answer(
        self,
        ask: Callable[[], Awaitable[None]],
        others: Iterable[Model],
        call: Call,
        *,
        trail: Trail,
        permit: Permit,
        failed: Refusal,
    ) -> None:
        """Have `call` answered by one of `others`, in their order; `ask` begins its attempts anew, `failed` is why.

        `trail` tells which model answers.

        Raises:
            Refusal: `failed`, or the same of another pool of the model, where nobody can answer.
            BadRequest, DeadlinePassed, Draining: as `Attempts.run`.
        """
        principal, attempts, asked = trail.principal, trail.attempts, trail.model
        assert principal is not None, "the call was admitted"
        assert attempts is not None, "it was tried"
        assert asked is not None, "there is such a model"
        for place, model in enumerate(others, 1):
            if attempts.over or isinstance(failed, _TIME_IS_UP):  # the clock may say otherwise still
                break
            if not await self._admit(permit, principal, call, model, asked=asked, call_id=f"{permit.call_id}+{place}"):
                continue
            self._turn(trail, model, asked=asked)
            attempts.turn_to(model)
            try:
                await ask()
            except (*CANNOT_ANSWER, *_TIME_IS_UP) as refusal:
                failed = _told(failed, refusal, of_asked=model.name == asked.name)
            except BadRequest:  # what another model says of the call is not what was asked
                if model.name == asked.name:
                    raise
            else:
                return
            finally:
                if model.name != asked.name:
                    result = "unanswered" if attempts.first_byte_at is None else "answered"
                    self._metrics.fallback(asked.name, model.name, result=result)
        self._turn(trail, asked, asked=asked)
        permit.turn(None, None)
        try:
            raise failed
        finally:
            del failed  # with its traceback it would be a cycle, and hold the call

    async def _admit(
        self, permit: Permit, principal: Principal, call: Call, model: Model, *, asked: Model, call_id: str
    ) -> bool:
        if call.text_bytes:
            call = call._replace(input_tokens=model.estimate.text(call.text_bytes))
        try:
            await self._admission.admit_elsewhere(
                permit,
                principal,
                call,
                model=model.name,
                pool=model.pool.name,
                default_output_tokens=model.entry.default_output_tokens,
                call_id=call_id,
            )
        except (TooMany, LimitsUnavailable):
            if model.name != asked.name:
                self._metrics.fallback(asked.name, model.name, result="limited")
            return False
        return True

    def _turn(self, trail: Trail, model: Model, *, asked: Model) -> None:
        trail.leave()
        trail.leave = self._metrics.call_started(model.name)
        trail.model = model
        trail.fallback_for = None if model.name == asked.name else asked.name


def _told(failed: Refusal, refusal: Refusal, *, of_asked: bool) -> Refusal:
    """Return what the client is told: of models that it did not ask for nothing, but that its time is up."""
    if isinstance(refusal, _TIME_IS_UP):
        return refusal
    return _of_both(failed, refusal) if of_asked else failed


def _of_both(failed: Refusal, also: Refusal) -> Refusal:
    """Return what the client is told when two pools of its model could not answer: what holds of both together.

    That replicas were tried and failed says more than that some are full, and that more than that none is up. Of two
    waits the shorter one is enough.
    """
    for kind in (UpstreamFailed, Overloaded):
        if isinstance(failed, kind) != isinstance(also, kind):
            return failed if isinstance(failed, kind) else also
    if isinstance(failed, Overloaded) and isinstance(also, Overloaded) and failed.retry_after_s < also.retry_after_s:
        return failed
    return also
