"""Why an answer breaks off, and how such a stream ends for its client: with an error event, never with `[DONE]`."""

from typing import Literal

from gateway.client import deadline
from gateway.errors import DeadlinePassed, Draining, Refusal, UpstreamError, UpstreamTimeout

# Which of the model's `timeouts` has passed.
Timeout = Literal["first_byte_timeout", "answer_timeout", "idle_timeout", "total_timeout"]
# reset: the connection ended before the answer. garbage: what came is not HTTP. draining: this gateway stops.
# unfinished: a clean end as HTTP, but not of a whole answer. client_deadline: the time that the client allows is over.
# found_down: probes found the replica down before its answer began.
Break = Timeout | Literal["reset", "garbage", "draining", "unfinished", "client_deadline", "found_down"]


def error_event(reason: Break, *, at_boundary: bool) -> bytes:
    """Return the bytes that make an unfinished stream end visibly.

    OpenAI's SDKs take a clean end without `[DONE]` for a whole answer, and glue an event to an unfinished one: so the
    fragment is closed first, with a line end and a blank line, and the error stands in an event of its own.
    """
    return (b"" if at_boundary else b"\n\n") + refusal_event(_refusal(reason))


def refusal_event(refusal: Refusal) -> bytes:
    """Return an event that tells a refusal, for a stream whose head is out."""
    return b"data: " + refusal.body() + b"\n\n"


def _refusal(reason: Break) -> Refusal:
    match reason:
        case "total_timeout":
            return UpstreamTimeout("The answer took longer than it may here; it is incomplete. Ask for less.")
        case "first_byte_timeout" | "answer_timeout" | "idle_timeout":
            return UpstreamTimeout("The model's server stopped sending; the answer is incomplete.")
        case "client_deadline":
            return DeadlinePassed(f"The time that {deadline.NAME} allows is over; the answer is incomplete.")
        case "draining":
            return Draining("This gateway is restarting; the answer is incomplete. Send the call again.")
        case "reset" | "garbage" | "unfinished" | "found_down":
            return UpstreamError("The model's server failed; the answer is incomplete.")
