"""What a token costs the gateway, in this process: one that it knows, and new ones.

Beside these what PyJWT takes to decode them with the same checks, what it takes to check nothing but the signature, and
what the arithmetic of that takes alone.
"""

import asyncio
import json
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from bench.calls import AUDIENCE, ISSUER
from gateway import config
from gateway.clock import SystemClock
from gateway.identity.authenticate import Authenticator

NEW = 600
QUICK = 20
# Tokens in a row that are taken one way before it is the next one's turn: each has in its caches what it needs.
_ROW = 50
_KNOWN = 2000

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_KEYS: Mapping[config.Algorithm, Callable[[], Private]] = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def table(new: int) -> str:
    """Return a Markdown table, of so many new tokens of each kind."""
    rows = [_row(algorithm, make(), new) for algorithm, make in _KEYS.items()]
    head = "| token | known µs | new µs | by PyJWT µs | signature by PyJWT µs | arithmetic alone µs | new / signature |"
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|---:|", *rows])


def _row(algorithm: config.Algorithm, key: Private, count: int) -> str:
    costs = asyncio.run(_costs(algorithm, key, count))
    return (
        f"| {algorithm} | {costs.known:.1f} | {costs.new:.0f} | {costs.pyjwt:.0f} "
        f"| {costs.signature:.0f} | {costs.check:.0f} | {costs.new / costs.signature:.2f} |"
    )


async def _costs(algorithm: config.Algorithm, key: Private, count: int) -> "_Costs":
    signer = jwt.get_algorithm_by_name(algorithm)
    members: dict[str, Any] = signer.to_jwk(key.public_key(), as_dict=True)
    members |= {"kid": "bench", "alg": algorithm}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        jwks = Path(folder) / "jwks.json"
        jwks.write_text(json.dumps({"keys": [members]}))
        issuer = config.Issuer(issuer=ISSUER, jwks=str(jwks), algorithms=(algorithm,), audience=AUDIENCE)
        async with aiohttp.ClientSession() as session:
            auth = config.Auth(issuers=(issuer,))
            stage = Authenticator(auth, session, clock=SystemClock(), observe=lambda _issuer, _result: None)
            try:
                measuring = _Measuring(stage, jwt.PyJWK(members), algorithm)
                await stage.authenticate(b"Bearer " + _token(algorithm, key, -1).encode())  # its key is known now
                for first in range(0, count, _ROW):
                    await measuring.row(
                        [_token(algorithm, key, first + serial) for serial in range(min(_ROW, count - first))]
                    )
                return measuring.costs()
            finally:
                await stage.close()


class _Costs(NamedTuple):
    """In microseconds."""

    known: float
    new: float
    pyjwt: float
    signature: float
    check: float


class _Measuring:
    """Takes the time of tokens, each way in turn. Told is a quartile: what disturbs adds."""

    def __init__(self, stage: Authenticator, jwk: jwt.PyJWK, algorithm: str) -> None:
        self._stage = stage
        self._jwk = jwk
        self._algorithm = algorithm
        self._pyjwt = jwt.PyJWT({"require": ["iss", "aud", "exp"]})
        self._pyjws = jwt.PyJWS()
        self._took_s: tuple[list[float], list[float], list[float], list[float]] = ([], [], [], [])
        self._last = b""

    async def row(self, tokens: list[str]) -> None:
        new, pyjwt, signature, check = self._took_s
        for header in [b"Bearer " + token.encode() for token in tokens]:
            began = time.perf_counter()
            assert self._stage.recall(header) is None
            await self._stage.authenticate(header)
            new.append(time.perf_counter() - began)
            self._last = header
        for token in tokens:
            began = time.perf_counter()
            self._pyjwt.decode(
                token, self._jwk, algorithms=[self._algorithm], audience=AUDIENCE, issuer=ISSUER, leeway=5
            )
            pyjwt.append(time.perf_counter() - began)
        for token in tokens:
            began = time.perf_counter()
            self._pyjws.decode_complete(token, self._jwk, algorithms=[self._algorithm])
            signature.append(time.perf_counter() - began)
        for text, _, end in [token.encode().rpartition(b".") for token in tokens]:
            signed = jwt.utils.base64url_decode(end)
            began = time.perf_counter()
            assert self._jwk.Algorithm.verify(text, self._jwk.key, signed)
            check.append(time.perf_counter() - began)

    def costs(self) -> _Costs:
        known = min(timeit.repeat(lambda: self._stage.recall(self._last), number=_KNOWN, repeat=10)) / _KNOWN
        return _Costs(known * 1e6, *(statistics.quantiles(took)[0] * 1e6 for took in self._took_s))


def _token(algorithm: config.Algorithm, key: Private, serial: int) -> str:
    now = int(SystemClock().now())
    who = {"iss": ISSUER, "aud": [AUDIENCE, "account"], "sub": "service-account-batch", "org_id": "acme"}
    claims = who | {"azp": "batch", "scope": "profile email", "iat": now, "exp": now + 3600, "jti": str(serial)}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "bench"})
