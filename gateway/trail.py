"""What a call leaves behind on its way: filled stage by stage by the pipeline, read once at its end."""

from collections.abc import Callable

from gateway.calls.call import Call
from gateway.clock import Clock
from gateway.errors import NoReplicaAvailable, Overloaded, Refusal, UpstreamFailed
from gateway.identity.principal import Principal
from gateway.relay.attempts import Attempts
from gateway.relay.outcome import Outcome
from gateway.routing.catalog import Model
from gateway.telemetry.record import CallRecord, Ending, Endpoint

# nginx's word for it: the client closed its connection before it had the answer.
CLIENT_CLOSED_REQUEST = 499


def _nowhere() -> None:
    """Leave no model."""


class Trail:
    """One call's facts. Times are monotonic seconds but for `started`.

    `model` is the one that answers, `fallback_for` the name of the one that was asked for, where that is another.
    `leave` is to be called when it ends at that model: it is counted there until then.
    `cut`: its refusal came amid an answer. `untaken`: the client has not taken all of an answer that is complete.
    `stalled`: it took nothing for so long that it was cut.
    """

    __slots__ = (
        "_clock", "attempts", "began_at", "body_wait_s", "call", "client_gone", "cut", "endpoint", "fallback_for",
        "inference_id", "leave", "model", "outcome", "principal", "refusal", "stalled", "started", "status", "untaken",
    )  # fmt: skip

    def __init__(self, inference_id: str, endpoint: Endpoint, clock: Clock) -> None:
        self.inference_id = inference_id
        self.endpoint: Endpoint = endpoint
        self.started = clock.now()
        self.body_wait_s = 0.0
        self.principal: Principal | None = None
        self.call: Call | None = None
        self.model: Model | None = None
        self.leave: Callable[[], None] = _nowhere
        self.fallback_for: str | None = None
        self.attempts: Attempts | None = None
        self.outcome: Outcome | None = None
        self.refusal: Refusal | None = None
        self.client_gone = False
        self.cut = self.untaken = self.stalled = False
        self.status = CLIENT_CLOSED_REQUEST
        self._clock = clock
        self.began_at = clock.monotonic()

    def record(self) -> CallRecord:
        """Return everything that is known of the call, which has ended now."""
        principal, model, attempts, outcome = self.principal, self.model, self.attempts, self.outcome
        tried = attempts.tried if attempts else ()
        asked_at = attempts.asked_at if attempts else None
        first_byte_at = attempts.first_byte_at if attempts else None
        record = CallRecord()
        record.inference_id = self.inference_id
        record.endpoint = self.endpoint
        record.model = model.name if model else None
        record.fallback_for = self.fallback_for
        record.tenant = principal.tenant if principal else None
        record.key = principal.key if principal else None
        record.status = self.status
        record.ending = self._ending()
        record.stream = self.call is not None and self.call.stream
        record.usage = outcome.usage if outcome else None
        record.usage_missing = outcome.usage_missing if outcome else None
        record.broken_by = "write_timeout" if self.stalled else outcome.broken_by if outcome else None
        record.replica = tried[-1].name if tried else None
        record.pool = attempts.pool.name if attempts else model.pool.name if model else None
        record.attempts = attempts.made if attempts else 0
        record.failed_by = str(attempts.failed) if attempts and attempts.failed else None
        record.started = self.started
        record.duration_s = self._clock.monotonic() - self.began_at
        waited_unasked_s = attempts.waited_unasked_s if attempts else 0.0
        record.overhead_s = None if asked_at is None else asked_at - self.began_at - self.body_wait_s - waited_unasked_s
        record.waited_s = attempts.waited_s if attempts else None
        record.first_byte_s = None if first_byte_at is None else first_byte_at - self.began_at
        record.error_code = self.refusal.code if self.refusal else None
        return record

    def _ending(self) -> Ending:
        if self.refusal is not None:
            if self.cut:
                return "broken"
            engines_fault = isinstance(self.refusal, UpstreamFailed | NoReplicaAvailable | Overloaded)
            return "upstream_failed" if engines_fault else "refused"
        if self.untaken or self.stalled:
            return "client_gone"
        if self.outcome is not None:
            return self.outcome.ending
        return "client_gone" if self.status == CLIENT_CLOSED_REQUEST else "ok"
