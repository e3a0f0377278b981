"""The request that a replica gets: a fresh head, of the client's only what is allowed, and the body as given. Pure."""

from collections.abc import Mapping

from gateway.calls.call import PATHS, Endpoint
from gateway.routing.replica import Replica

# Of the client's fields only these go on. Its Authorization, cookies and every X- field stay here: vLLM, for one,
# lets X-Vllm-Priority jump its queue and X-data-parallel-rank choose a worker.
_PASSED_ON = ("Accept", "traceparent", "tracestate")


def build(replica: Replica, endpoint: Endpoint, body: bytes, *, inference_id: str, client: Mapping[str, str]) -> bytes:
    """Return the bytes of a POST to `replica`, ready to send. Content-Length is its only framing."""
    lines = [
        f"POST {replica.base_path}{PATHS[endpoint]} HTTP/1.1",
        f"Host: {replica.authority}",
        "Content-Type: application/json",
        f"X-Request-Id: {inference_id}",
        f"Content-Length: {len(body)}",
    ]
    if replica.authorization is not None:
        lines.append(f"Authorization: {replica.authorization}")
    lines += [f"{name}: {client[name]}" for name in _PASSED_ON if name in client]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body
