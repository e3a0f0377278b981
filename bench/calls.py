"""What is sent: the four calls of the benchmark, who sends them, and what a right answer to each is."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from bench import wording
from bench.engine import PAUSE_FIELD, prepare
from bench.stamped import NUMBER_FIELD, START_FIELD, Shape, shape

ISSUER = "https://issuer.example"
AUDIENCE = "inference"
PLAN = "bench"

_SMALL_BYTES = 900
_LARGE_BYTES = 20_000
_PAUSE_MS = 10
_STREAMED_TOKENS = 128
_WHOLE_TOKENS = 32
_TURN_BYTES = 1000
_TEXT = "people in many towns read the news of the day and ask a model what it may mean for them tomorrow " * 20


@dataclass(frozen=True, slots=True)
class Call:
    """A request, ready to send; the length of its answer's body, and how many parts the engine sends it in."""

    request: bytes
    length: int
    parts: int


@dataclass(frozen=True, slots=True)
class Calls:
    small: Call
    large: Call
    paced: Call
    burst: Call


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's token, and the key set that proves it."""

    token: str
    jwks: str


def identity() -> Identity:
    """Return a fresh key's token, valid for a day."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "bench", "alg": "RS256", "use": "sig"}
    now = int(time.time())  # noqa: TID251 a token needs the real time
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "key-1", "org_id": "acme", "plan": PLAN}
    token = jwt.encode(claims | {"iat": now, "exp": now + 86400}, key, algorithm="RS256", headers={"kid": "bench"})
    return Identity(token, json.dumps({"keys": [public]}))


def calls(token: str) -> Calls:
    """Return the calls of the client whose token this is."""
    stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": _STREAMED_TOKENS}
    return Calls(
        small=_call(token, _SMALL_BYTES, {"max_tokens": _WHOLE_TOKENS}),
        large=_call(token, _LARGE_BYTES, {"max_tokens": _WHOLE_TOKENS}),
        paced=_call(token, _SMALL_BYTES, stream | {PAUSE_FIELD: _PAUSE_MS}),
        burst=_call(token, _SMALL_BYTES, stream),
    )


def of_stranger(number: int) -> bytes:
    """Return a call whose token names a key that nobody has."""
    head = {"alg": "RS256", "kid": f"unknown-{number}"}
    text = jwt.utils.base64url_encode(json.dumps(head).encode()).decode()
    claims = jwt.utils.base64url_encode(json.dumps({"iss": ISSUER, "sub": "stranger"}).encode()).decode()
    return _request(f"{text}.{claims}.AAAA", _body(_SMALL_BYTES, {"max_tokens": _WHOLE_TOKENS}))


def stamped(token: str, number: int, *, start_ns: int, timed: int) -> tuple[bytes, Shape]:
    """Return the request for a stream with so many events that tell their time, and the shape of its answer."""
    asked = {NUMBER_FIELD: number, START_FIELD: start_ns, "max_tokens": timed + 1}
    body = _body(_SMALL_BYTES, {"stream": True, "stream_options": {"include_usage": True}, **asked})
    return _request(token, body), shape(wording.job(body))


def _call(token: str, size: int, fields: Mapping[str, Any]) -> Call:
    body = _body(size, fields)
    parts = prepare(body).parts
    return Call(_request(token, body), length=sum(map(len, parts)), parts=len(parts))


def _request(token: str, body: bytes) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "User-Agent: bench",
        "Accept: */*",
        "Content-Type: application/json",
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _body(size: int, fields: Mapping[str, Any]) -> bytes:
    """Return a conversation of about `size` bytes, in turns of at most about a kilobyte."""
    turns = max(1, size // _TURN_BYTES)
    text = _TEXT[: size // turns - 50]
    messages = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn in range(turns)]
    return json.dumps(
        {"model": wording.MODEL, "messages": messages, "temperature": 0.7, "top_p": 0.95, **fields}
    ).encode()
