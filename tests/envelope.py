"""An error answer as clients must find it: the documented shape and headers, and nothing else."""

from typing import Any

from gateway.errors import CONTENT_TYPE
from tests.doors import Reply

BAD_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


def error_of(reply: Reply, status: int, code: str, kind: str, *, param: str | None = None) -> str:
    """Check a whole error answer and return its message."""
    error: dict[str, Any] = reply.json()["error"]
    assert reply.json() == {"error": error}
    expected = {"code": code, "error_type": kind, "type": kind} | ({} if param is None else {"param": param})
    assert (reply.status, error) == (status, {**expected, "message": error["message"]}), reply
    assert isinstance(error["message"], str)
    assert error["message"]
    check_headers(reply)
    return error["message"]


def check_headers(reply: Reply) -> None:
    """Check what every error answer carries, and what only some may."""
    headers = reply.headers
    assert headers["Content-Type"] == CONTENT_TYPE
    assert headers["Content-Length"] == str(len(reply.body))
    assert len(headers["INFERENCE-ID"]) >= 22  # 128 bits in base64
    assert headers["x-request-id"] == headers["INFERENCE-ID"]
    assert "Server" not in headers
    assert ("WWW-Authenticate" in headers) == (reply.status == 401)
    assert ("Allow" in headers) == (reply.status == 405)
    if reply.status == 503 or reply.error["code"] == "rate_limit_exceeded":
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert 1000 * (int(headers["Retry-After"]) - 1) < int(headers["retry-after-ms"]) <= 60_000
    else:
        assert not {"Retry-After", "retry-after-ms"} & set(headers)
    final = reply.error["error_type"] == "insufficient_quota"
    assert headers.get("x-should-retry") == ("false" if final else None)
