"""How the fake engine words its answers: as vLLM does, for one model, with the same identity and date in each."""

from gateway.engine import wire
from gateway.engine.job import Job, parse

MODEL = "bench/model"

_CREATED = 1_764_400_000
_MAX_MODEL_LEN = 131_072


def job(body: bytes) -> Job:
    """Return what a chat body asks for."""
    return parse(body, endpoint="chat", model=MODEL, max_model_len=_MAX_MODEL_LEN)


def answer(asked: Job) -> wire.Answer:
    """Return the answer's JSON."""
    return wire.Answer(asked, "0123456789abcdef", _CREATED, MODEL)


def head(content_type: str, framing: str) -> bytes:
    """Return the head of a good answer."""
    date = "date: Sun, 29 Nov 2026 00:00:00 GMT"
    return f"HTTP/1.1 200 OK\r\n{date}\r\nserver: uvicorn\r\n{framing}\r\ncontent-type: {content_type}\r\n\r\n".encode()


STREAM_HEAD = head("text/event-stream; charset=utf-8", "transfer-encoding: chunked")
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return bytes of a body as one chunk (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
