"""The request that a replica gets: a fresh head, of the client's only what is allowed, and the body as given. Pure."""

from collections.abc import Mapping
from functools import lru_cache

from gateway.calls.call import PATHS, Endpoint
from gateway.routing.replica import Replica

# Of the client's fields only these go on. Its Authorization, cookies and every X- field stay here: vLLM, for one,
# lets X-Vllm-Priority jump its queue and X-data-parallel-rank choose a worker.
_PASSED_ON = ("Accept", "traceparent", "tracestate")


def build(replica: Replica, endpoint: Endpoint, body: bytes, *, inference_id: str, client: Mapping[str, str]) -> bytes:
    """Return the bytes of a POST to `replica`, ready to send. Content-Length is its only framing."""
    passed_on = "".join([f"{name}: {client[name]}\r\n" for name in _PASSED_ON if name in client])
    head = (
        f"{_beginning(replica, endpoint)}X-Request-Id: {inference_id}\r\nContent-Length: {len(body)}\r\n{passed_on}\r\n"
    )
    return head.encode("utf-8", "surrogateescape") + body


@lru_cache(maxsize=1024)
def _beginning(replica: Replica, endpoint: Endpoint) -> str:
    """Return the part of the head that is the same for every call to this replica."""
    authorization = f"Authorization: {replica.authorization}\r\n" if replica.authorization is not None else ""
    return (
        f"POST {replica.base_path}{PATHS[endpoint]} HTTP/1.1\r\nHost: {replica.authority}\r\n"
        f"Content-Type: application/json\r\n{authorization}"
    )
