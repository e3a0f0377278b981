"""An identity provider for tests: real keys of every kind, tokens good and forged, a scripted key server."""

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any, Self

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

# Whatever an issuer may write into a claim. A few telling characters: drawing from all of Unicode is slow to begin.
_text = st.text("ab1-{}*: \0\né名\ud800\u202e", max_size=10)
any_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey

_CURVES: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
    "ES256K": ec.SECP256K1(),
}


@dataclass
class SetClock:
    """A clock that stands still until it is told otherwise."""

    time: float = 1_800_000_000.0
    ticks: float = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.ticks

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self.ticks += seconds


@dataclass(frozen=True)
class SigningKey:
    """A private key with the algorithm it signs by, and its `kid`."""

    key_id: str
    algorithm: str
    private: Private

    def jwk(self, **changes: object) -> dict[str, Any]:
        """Return the public half as the provider publishes it; None in `changes` takes a member out."""
        members = {**public_members(self.private), "kid": self.key_id, "alg": self.algorithm, "use": "sig", **changes}
        return {name: value for name, value in members.items() if value is not None}

    def token(self, claims: Mapping[str, object], **header: object) -> str:
        """Return a signed token; a header member given as None is left out."""
        return self.raw(json.dumps({"alg": self.algorithm, "kid": self.key_id, **header}), json.dumps(dict(claims)))

    def raw(self, header: str, payload: str) -> str:
        """Return a properly signed token over any header and payload, valid JSON or not."""
        if header.startswith("{"):
            members = json.loads(header)
            header = json.dumps({name: value for name, value in members.items() if value is not None})
        text = f"{b64(header.encode())}.{b64(payload.encode('utf-8', 'surrogatepass'))}"
        signer = jwt.PyJWS().get_algorithm_by_name(self.algorithm)
        return f"{text}.{b64(signer.sign(text.encode(), self.private))}"


@cache
def signing_key(key_id: str = "k1", algorithm: str = "RS256") -> SigningKey:
    """Return the key of this name; the same one every time, because RSA keys are slow to make."""
    if algorithm in _CURVES:
        return SigningKey(key_id, algorithm, ec.generate_private_key(_CURVES[algorithm]))
    if algorithm == "EdDSA":
        return SigningKey(key_id, algorithm, ed25519.Ed25519PrivateKey.generate())
    return SigningKey(key_id, algorithm, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def public_members(private: Private) -> dict[str, Any]:
    if isinstance(private, rsa.RSAPrivateKey):
        return RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    if isinstance(private, ec.EllipticCurvePrivateKey):
        return ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    return OKPAlgorithm.to_jwk(private.public_key(), as_dict=True)


def b64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def key_set(*keys: SigningKey) -> bytes:
    return json.dumps({"keys": [key.jwk() for key in keys]}).encode()


@dataclass
class IdentityProvider:
    """A key server on a real socket. What it answers can be changed at any time; what it was asked is counted."""

    document: bytes = b'{"keys": []}'
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    metadata: dict[str, object] | str | None = None
    tls: ssl.SSLContext | None = None
    authorizations: list[str | None] = field(default_factory=list)
    hits: int = 0
    discoveries: int = 0
    at_once: int = 0
    most_at_once: int = 0
    _answering: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, *keys: SigningKey) -> None:
        self.document = key_set(*keys)

    def hang(self) -> None:
        """Accept connections and requests from now on, and never answer."""
        self._answering.clear()

    def answer(self) -> None:
        """Answer again, those included that hang."""
        self._answering.set()

    @property
    def issuer(self) -> str:
        return self._origin

    @property
    def jwks(self) -> str:
        return f"{self._origin}/jwks"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/jwks", self._jwks)
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._origin = f"{'http' if self.tls is None else 'https'}://{host}:{port}"
        self.answer()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer()
        await self._runner.cleanup()

    async def _jwks(self, request: web.Request) -> web.Response:
        if "application/jwk-set+json" not in request.headers["Accept"]:
            return web.Response(status=406)  # as Kubernetes
        self.hits += 1
        self.authorizations.append(request.headers.get("Authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.delay_s)
            await self._answering.wait()
            return web.Response(body=self.document, status=self.status, headers=self.headers)
        finally:
            self.at_once -= 1

    async def _discovery(self, request: web.Request) -> web.Response:
        self.discoveries += 1
        self.authorizations.append(request.headers.get("Authorization"))
        await self._answering.wait()
        if isinstance(self.metadata, str):
            return web.Response(text=self.metadata)
        return web.json_response(self.metadata or {"issuer": self.issuer, "jwks_uri": self.jwks})
