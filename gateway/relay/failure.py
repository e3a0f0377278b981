"""What went wrong at one replica, and what all the failures of a call mean for its client. Pure.

An engine's word that the call itself is wrong is passed on as a 400 of ours; anything else it says is about that
replica and never reaches the client as such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jiter

from gateway.errors import (
    BadRequest,
    ContextLengthExceeded,
    InvalidValue,
    Overloaded,
    Refusal,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.relay.endings import Break, Timeout
from gateway.relay.outcome import BrokenBy

# A break before the first event, no connection (refused, or not in time), or an answer that is not one: status (the
# engine's own error), overloaded (it says that it is full), malformed (a 200 that is not what was asked for).
Reason = Break | Literal["connect", "connect_timeout", "status", "overloaded", "malformed"]

# The engine says: this call is wrong, wherever it is sent.
CALLERS_FAULT = frozenset({400, 413, 422})
# The engine says: not now, I am full.
FULL = frozenset({429, 503})
# When to ask one again that does not say so: it gets the next call, but it will hardly have room at once.
_UNTOLD_S = 5.0

# What says of a replica that it is ill: not what clients and this gateway end, what probes found, and that it is full.
_FAULTS: frozenset[Reason | BrokenBy] = frozenset(
    {
        "connect", "connect_timeout", "first_byte_timeout", "answer_timeout", "idle_timeout", "reset", "garbage",
        "unfinished", "malformed", "engine_error",
    }
)  # fmt: skip
# An engine's errors that a client may have caused, or our config: any other status says that the engine is ill.
_NO_FAULT = frozenset({*range(400, 500), 501, 505})

# As vLLM ("maximum context length is N tokens", once "maximum model length"), SGLang ("longer than the model's context
# length", "exceeds the maximum allowed length"), TGI (`inputs` tokens "must be <= N", `inputs` "must have less than N
# tokens") and llama.cpp (type `exceed_context_size_error`) each put it.
_CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context size",
    "context_size",
    "maximum model length",
    "maximum allowed length",
    "`inputs` tokens",
    "`inputs` must have less than",
    "max_total_tokens",
)
_MAX_MESSAGE = 1000
_TIMEOUTS = frozenset(get_args(Timeout))


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that failed before anything was sent to the client. `reason` is a metric's label.

    `status`: the engine's own error, where it had a number. `retry_after_s`: of a full engine, when to come again.
    """

    reason: Reason
    status: int | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        """Return the reason as the log has it: with the number of the engine's own error."""
        return self.reason if self.status is None else f"{self.reason} {self.status}"

    @property
    def is_fault(self) -> bool:
        """Whether it counts against the replica."""
        return self.status not in _NO_FAULT if self.reason == "status" else is_fault(self.reason)


def is_fault(reason: Reason | BrokenBy) -> bool:
    """Whether what ended an answer counts against its replica."""
    return reason in _FAULTS


def refusal_of(failures: Sequence[Failure]) -> Refusal:
    """Return what the client is told when every replica that was tried failed."""
    if failures and all(failure.reason == "overloaded" for failure in failures):
        waits = [_UNTOLD_S if failure.retry_after_s is None else failure.retry_after_s for failure in failures]
        return Overloaded(
            "Every server of this model is at capacity; retry after the time in Retry-After.", retry_after_s=min(waits)
        )
    if failures and failures[-1].reason in _TIMEOUTS:
        return UpstreamTimeout("The model's servers did not begin to answer in time; retry, or ask for less.")
    return UpstreamError("The model's servers failed to answer this call; retrying may help.")


def judge(status: int, body: bytes, *, retry_after_s: float | None = None) -> Failure | BadRequest:
    """Return what an engine's answer other than 200 means: the caller's fault, or this replica's failure."""
    return _callers_fault(_error_object(body)) if status in CALLERS_FAULT else _failure(status, retry_after_s)


def judge_event(error: Mapping[str, Any]) -> Failure | BadRequest:
    """Return what an error means that an engine sent in place of a stream's first event: its code is the status."""
    code = error.get("code", error.get("http_status_code"))  # the latter is TGI's
    return _callers_fault(error) if code in CALLERS_FAULT else _failure(code)


def message_of(error: object) -> str:
    """Return the message of an engine's error in any of the engines' shapes."""
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


def _failure(status: object, retry_after_s: float | None = None) -> Failure:
    number = status if isinstance(status, int) else None
    return Failure("overloaded", number, retry_after_s) if status in FULL else Failure("status", number)


def _callers_fault(error: Mapping[str, Any] | str) -> BadRequest:
    message = message_of(error)
    param = error.get("param") if isinstance(error, Mapping) else None
    if not message and isinstance(error, Mapping) and (detail := _first_detail(error)):
        param, message = detail
    message = message[:_MAX_MESSAGE] or "The engine refused this call as invalid."
    param = param if isinstance(param, str) and param else None
    kind = str(error.get("type")) if isinstance(error, Mapping) else ""
    if any(word in message.lower() or word in kind for word in _CONTEXT_WORDS):
        return ContextLengthExceeded(message, param=param)
    return InvalidValue(message, param=param)


def _first_detail(error: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the field and message of the first of pydantic's faults, which FastAPI and Mistral send as a list."""
    message = error.get("message")
    faults = (message if isinstance(message, dict) else error).get("detail")
    first = faults[0] if isinstance(faults, list) and faults else None
    if not isinstance(first, dict) or not isinstance(first.get("msg"), str) or not isinstance(first.get("loc"), list):
        return None
    field = ".".join(str(step) for step in first["loc"] if step != "body")
    return field, f"{field}: {first['msg']}" if field else first["msg"]


def _error_object(body: bytes) -> dict[str, Any] | str:
    """Find the error in `{"error": {…}}` (vLLM, llama.cpp), `{"error": "text"}` (TGI) or a flat object (SGLang)."""
    try:
        answer = jiter.from_json(body)
    except ValueError:
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    return error if isinstance(error, dict | str) else {}
