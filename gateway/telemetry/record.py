"""Everything that is known of one finished call: what metrics and the access log are told."""

from dataclasses import dataclass
from typing import Literal

from gateway.calls.usage import Usage

Endpoint = Literal["chat", "completions", "models", "other"]

# How a call ended. `refused` includes an engine's word that the call is wrong; `broken` an error inside a stream.
Ending = Literal["ok", "refused", "upstream_failed", "broken", "client_gone"]


@dataclass(slots=True, init=False)
class CallRecord:
    """One finished call. Only a trail makes one, and fills it field by field: twenty arguments would cost 1 us.

    `model` is the configured name, None when none was resolved; `fallback_for` that of the model which was asked for,
    where another answered. `tenant` and `key` are None when nobody was authenticated. `status` is as sent, 499 where
    the client left before. `usage_missing` is one of a few words of ours that say why an answer ended without the
    engine's usage; `broken_by` says what ended it early, `failed_by` what ended its last attempt that failed. `replica`
    is `host:port`, never a URL with its secrets.
    `started` is in seconds since the epoch; `overhead_s` is our own time before the engine is asked, `waited_s` the
    time that the call waited for a replica to have room, if it had to. `first_byte_s` is the time from the start of the
    call to the answer's first byte.
    """

    inference_id: str
    endpoint: Endpoint
    model: str | None
    fallback_for: str | None
    tenant: str | None
    key: str | None
    status: int
    ending: Ending
    stream: bool
    usage: Usage | None
    usage_missing: str | None
    broken_by: str | None
    replica: str | None
    pool: str | None
    attempts: int
    failed_by: str | None
    started: float
    duration_s: float
    overhead_s: float | None
    waited_s: float | None
    first_byte_s: float | None
    error_code: str | None
