"""What a token costs the gateway, in this process: one that it knows, and new ones beside their signature's check."""

import asyncio
import json
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from bench.calls import AUDIENCE, ISSUER
from gateway import config
from gateway.clock import SystemClock
from gateway.identity.authenticate import Authenticator

NEW = 400
QUICK = 20
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
    head = "| token | known µs | new µs | its signature's check alone µs | new / check |"
    return "\n".join([head, "|---|---:|---:|---:|---:|", *rows])


def _row(algorithm: config.Algorithm, key: Private, count: int) -> str:
    known, new, check = asyncio.run(_costs(algorithm, key, count))
    return f"| {algorithm} | {known:.1f} | {new:.0f} | {check:.0f} | {new / check:.2f} |"


async def _costs(algorithm: config.Algorithm, key: Private, count: int) -> tuple[float, float, float]:
    """Return what a known token, a new one, and a signature cost, in microseconds. A quartile: what disturbs adds."""
    tokens = [_token(algorithm, key, serial) for serial in range(count)]
    signer = jwt.get_algorithm_by_name(algorithm)
    public = key.public_key()
    jwk = {**signer.to_jwk(public, as_dict=True), "kid": "bench", "alg": algorithm}
    new: list[float] = []
    check: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        jwks = Path(folder) / "jwks.json"
        jwks.write_text(json.dumps({"keys": [jwk]}))
        issuer = config.Issuer(issuer=ISSUER, jwks=str(jwks), algorithms=(algorithm,), audience=AUDIENCE)
        async with aiohttp.ClientSession() as session:
            auth = config.Auth(issuers=(issuer,))
            stage = Authenticator(auth, session, clock=SystemClock(), observe=lambda _issuer, _result: None)
            for token in tokens:
                header = b"Bearer " + token.encode()
                text, _, signature = token.encode().rpartition(b".")
                signature = jwt.utils.base64url_decode(signature)
                began = time.perf_counter()
                await stage.authenticate(header)
                between = time.perf_counter()
                assert signer.verify(text, public, signature)
                check.append(time.perf_counter() - between)
                new.append(between - began)
            known = min(timeit.repeat(lambda: stage.recall(header), number=_KNOWN, repeat=10)) / _KNOWN
            await stage.close()
    return known * 1e6, statistics.quantiles(new)[0] * 1e6, statistics.quantiles(check)[0] * 1e6


def _token(algorithm: config.Algorithm, key: Private, serial: int) -> str:
    now = int(SystemClock().now())
    who = {"iss": ISSUER, "aud": [AUDIENCE, "account"], "sub": "service-account-batch", "org_id": "acme"}
    claims = who | {"azp": "batch", "scope": "profile email", "iat": now, "exp": now + 3600, "jti": str(serial)}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "bench"})
