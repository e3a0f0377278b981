"""The request that a replica gets: a fresh head, of the client's only what is allowed, and the body as given. Pure."""

from collections.abc import Mapping
from functools import lru_cache

from gateway.calls.call import PATHS, Endpoint
from gateway.routing.replica import Replica

# Of the client's fields only these go on. Its Authorization, cookies and every X- field stay here: vLLM, for one,
# lets X-Vllm-Priority jump its queue and X-data-parallel-rank choose a worker.
_PASSED_ON = (b"accept", b"traceparent", b"tracestate")


def build(
    replica: Replica, endpoint: Endpoint, body: bytes, *, inference_id: str, client: Mapping[bytes, bytes]
) -> bytes:
    """Return the bytes of a POST to `replica`, ready to send. Content-Length is its only framing."""
    passed_on = b"".join([b"%b: %b\r\n" % (name, client[name]) for name in _PASSED_ON if name in client])
    beginning = _beginning(replica, endpoint, replica.authorization, replica.server_name)
    return b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n%b\r\n%b" % (
        beginning, inference_id.encode(), len(body), passed_on, body,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _beginning(replica: Replica, endpoint: Endpoint, authorization: str | None, _server_name: str) -> bytes:
    """Return the part of the head that is the same for every call to this replica, while it is configured alike."""
    authorized = f"Authorization: {authorization}\r\n" if authorization is not None else ""
    head = f"POST {replica.base_path}{PATHS[endpoint]} HTTP/1.1\r\nHost: {replica.authority}\r\n"
    return f"{head}Content-Type: application/json\r\n{authorized}".encode("utf-8", "surrogateescape")
