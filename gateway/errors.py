"""Every refusal a client can get, as a tree, and the response of each: docs/errors.md lists them.

    Refusal
    ├── BadRequest (400)      InvalidJson  InvalidValue  UnsupportedValue  MissingField  RequestTooLarge
    │                         UnsupportedMediaType  ContextLengthExceeded
    ├── Unauthorized (401)    MissingToken  InvalidToken  ExpiredToken
    ├── Forbidden (403)
    ├── ModelNotFound (404)   NotFound (404)  MethodNotAllowed (405)
    ├── TooMany (429)         RateLimited  QuotaExceeded  RequestExceedsLimit
    ├── InternalError (500)
    ├── UpstreamFailed (502)  UpstreamError  UpstreamTimeout
    ├── DeadlinePassed (502)
    └── Unavailable (503)     NoReplicaAvailable  Overloaded (QueueFull  WaitedTooLong)  NoRoom  Draining
                              LimitsUnavailable  IdentityUnavailable

A refusal says what, where (`param`) and what to do. It never holds a token, an address of a replica, or a class name.
"""

import json
from collections.abc import Mapping
from typing import ClassVar

# How long a client waits before it asks again: SDKs ignore 0 and some sleep whatever they are told.
RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 60

CONTENT_TYPE = "application/json; charset=utf-8"


class Refusal(Exception):
    """A call that is answered with an error: an HTTP status, the seed's error object, and headers."""

    status: ClassVar[int]
    code: ClassVar[str]
    error_type: ClassVar[str]

    def __init__(self, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the error object as JSON: the seed's `ErrorResponse`, and `type` beside `error_type` for SDKs."""
        return error_body(self.message, code=self.code, error_type=self.error_type, param=self.param)


def error_body(message: str, *, code: str, error_type: str, param: str | None = None) -> bytes:
    """Return `{"error": {…}}` in UTF-8; `param` is left out, never null."""
    error = {"code": code, "message": message, "param": param, "error_type": error_type, "type": error_type}
    if param is None:
        del error["param"]
    return json.dumps({"error": error}, separators=(",", ":")).encode()


def retry_headers(seconds: float) -> dict[str, str]:
    """Return `Retry-After` and `retry-after-ms` for a wait of `seconds`, kept within what every SDK honours."""
    wait_s = min(max(seconds, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
    return {"Retry-After": str(-int(-wait_s // 1)), "retry-after-ms": str(-int(-wait_s * 1000 // 1))}


class BadRequest(Refusal):
    """The call itself is wrong; sending it again cannot help."""

    status, code, error_type = 400, "invalid_value", "invalid_request_error"


class InvalidJson(BadRequest):
    """The body is not UTF-8 JSON that every reader understands alike."""

    code = "invalid_json"


class InvalidValue(BadRequest):
    """A field has a wrong type, is out of range, or contradicts another."""

    code = "invalid_value"


class UnsupportedValue(BadRequest):
    """A field or value is well formed but not served here."""

    code = "unsupported_value"


class MissingField(BadRequest):
    """A required field is absent or null."""

    code = "missing_field"


class RequestTooLarge(BadRequest):
    """The body is larger than `server.max_body`."""

    code = "request_too_large"


class UnsupportedMediaType(BadRequest):
    """The body is declared as something other than JSON, or is compressed."""

    code = "unsupported_media_type"


class ContextLengthExceeded(BadRequest):
    """The engine says that prompt and output do not fit its context."""

    code = "context_length_exceeded"


class Unauthorized(Refusal):
    """Nobody we know; carries `WWW-Authenticate` as RFC 6750 has it."""

    status, code, error_type = 401, "invalid_token", "authentication_error"

    def __init__(self, message: str) -> None:
        challenge = f'Bearer error="{self._challenge}", error_description="{message}"' if self._challenge else "Bearer"
        super().__init__(message, headers={"WWW-Authenticate": challenge})

    _challenge: ClassVar[str] = "invalid_token"


class MissingToken(Unauthorized):
    """No bearer token came with the call."""

    code = "missing_token"
    _challenge = ""


class InvalidToken(Unauthorized):
    """The token is malformed, forged, of another issuer, or says nothing usable about its bearer."""

    code = "invalid_token"


class ExpiredToken(Unauthorized):
    """The token was good once."""

    code = "expired_token"


class Forbidden(Refusal):
    """Not from where this comes."""

    status, code, error_type = 403, "forbidden", "invalid_request_error"


class ModelNotFound(Refusal):
    """No such model, or not for this principal: the two look the same."""

    status, code, error_type = 404, "model_not_found", "invalid_request_error"


class NotFound(Refusal):
    """No such path."""

    status, code, error_type = 404, "not_found", "invalid_request_error"


class MethodNotAllowed(Refusal):
    """The path exists, under another method; carries `Allow`."""

    status, code, error_type = 405, "method_not_allowed", "invalid_request_error"


class TooMany(Refusal):
    """A limit refused the call."""

    status, code, error_type = 429, "rate_limit_exceeded", "requests"


class RateLimited(TooMany):
    """A limit whose window refills; carries `Retry-After` and the x-ratelimit headers."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, measure: str, headers: Mapping[str, str]) -> None:
        super().__init__(message, headers=headers)
        self.measure = measure

    def body(self) -> bytes:
        """Return the error object; its type is the measure: requests, tokens or concurrency."""
        return error_body(self.message, code=self.code, error_type=self.measure)


class QuotaExceeded(TooMany):
    """A calendar quota is spent; `x-should-retry: false` keeps SDKs from hammering."""

    code, error_type = "quota_exceeded", "insufficient_quota"


class RequestExceedsLimit(TooMany):
    """The call is larger than a limit's whole window: it can never be admitted."""

    code, error_type = "request_exceeds_limit", "insufficient_quota"


class InternalError(Refusal):
    """A defect of ours. The message never tells details; the log does, under the inference id."""

    status, code, error_type = 500, "internal_error", "server_error"


class UpstreamFailed(Refusal):
    """A replica was tried and failed, and no other could answer."""

    status, code, error_type = 502, "upstream_error", "upstream_error"


class UpstreamError(UpstreamFailed):
    """The engine's connection or answer was broken."""

    code = "upstream_error"


class UpstreamTimeout(UpstreamFailed):
    """The engine did not begin to answer in time."""

    code = "upstream_timeout"


class DeadlinePassed(Refusal):
    """The time that the client itself allowed is over: no fault of a replica, and another try cannot help."""

    status, code, error_type = 502, "upstream_timeout", "upstream_error"


class Unavailable(Refusal):
    """Not tried; carries `Retry-After`."""

    status, code, error_type = 503, "overloaded", "server_error"

    def __init__(self, message: str, *, retry_after_s: float = RETRY_AFTER_MIN_S) -> None:
        super().__init__(message, headers=retry_headers(retry_after_s))
        self.retry_after_s = retry_after_s


class NoReplicaAvailable(Unavailable):
    """No replica of the pool is up."""

    code = "no_replica_available"


class Overloaded(Unavailable):
    """Every replica is full, by its own word or because it has as many calls as it may have."""

    code = "overloaded"


class QueueFull(Overloaded):
    """Every replica has as many calls as it may have, and as many wait already as may."""


class WaitedTooLong(Overloaded):
    """No replica had room for the call within `queue.max_wait`."""


class NoRoom(Unavailable):
    """The bodies of the calls under way leave no room for another: `server.body_budget`."""

    code = "overloaded"


class Draining(Unavailable):
    """This gateway is about to stop."""

    code = "draining"


class LimitsUnavailable(Unavailable):
    """Limits cannot be checked, and `on_store_failure: deny` says not to guess."""

    code = "limits_unavailable"


class IdentityUnavailable(Unavailable):
    """No key set of the token's issuer could be had yet, or the issuer could not be asked about the token."""

    code = "identity_unavailable"
