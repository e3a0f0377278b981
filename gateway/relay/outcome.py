"""How a call that reached an engine ended, and what it used: what settling, metrics and the log are told."""

from typing import Literal, NamedTuple

from gateway.calls.usage import Usage

Ending = Literal["ok", "broken", "client_gone"]
Missing = Literal["not_reported", "engine_died", "client_gone", "event_too_large"]


class Outcome(NamedTuple):
    """`usage_missing` says why usage is estimated, None where it is the engine's own."""

    ending: Ending
    usage: Usage
    usage_missing: Missing | None
