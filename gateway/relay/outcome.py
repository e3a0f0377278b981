"""How a call that reached an engine ended, and what it used: what settling, metrics and the log are told."""

from typing import Literal, NamedTuple

from gateway.calls.usage import Usage
from gateway.relay.endings import Break

Ending = Literal["ok", "broken", "client_gone"]
Missing = Literal["not_reported", "engine_died", "client_gone", "event_too_large"]
# What ended an answer early once it had begun. engine_error: the engine said so itself, inside the stream.
# write_timeout: the client took nothing for too long.
BrokenBy = Break | Literal["engine_error", "write_timeout"]


class Outcome(NamedTuple):
    """`usage_missing` says why usage is estimated, None where it is the engine's own. `broken_by`: of `broken`, why."""

    ending: Ending
    usage: Usage
    usage_missing: Missing | None
    broken_by: BrokenBy | None = None
