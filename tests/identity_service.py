"""A stand-in for Unikorn's identity service: encrypted bearer tokens, passports in exchange, keys that rotate, outages.

Like the real one, it alone can open the bearers it issues, and it knows which of them live. Passports are ES512, name
the issuer `uni-identity`, and are published with the current and the previous key.
"""

import asyncio
import base64
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote_plus

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.clock import Clock, SystemClock
from tests.identity_provider import SigningKey, b64
from tests.ports import free_port

PASSPORT = "urn:nscale:params:oauth:token-type:passport"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
TAG_BYTES = 16


def new_key(serial: int) -> SigningKey:
    return SigningKey(f"key-{serial}", "ES512", ec.generate_private_key(ec.SECP521R1()))


def stranger(serial: int = 0) -> str:
    """Return an encrypted token that the service did not issue."""
    header = b64(json.dumps({"alg": "dir", "enc": "A256GCM"}).encode())
    return f"{header}..{b64(b'nonce')}.{b64(str(serial).encode())}.{b64(b'tag')}"


@dataclass
class Account:
    """Who a bearer token is for, as the service knows it."""

    sub: str
    acctype: str
    org_ids: list[str]
    expires_at: float
    passports: int = 0
    vouched_until: float = 0.0  # when the last of its passports expires


@dataclass
class IdentityService:
    """The service on a real socket. What it does can be changed at any time; what it was asked is counted."""

    clock: Clock = field(default_factory=SystemClock)
    passport_s: float = 60.0
    client: tuple[str, str] | None = None  # id and secret that it asks of who exchanges
    says: tuple[int, str] | None = None  # a status and body that every endpoint about tokens answers with, if set
    headers: dict[str, str] = field(default_factory=dict)  # that go with it
    changes: dict[str, Any] = field(default_factory=dict)  # to the claims of passports; None takes one out
    drops: int = 0  # so many of the next questions lose their connection instead of being answered
    publishes: bool = True  # whether the key set shows a new key at once
    asked: Counter[str] = field(default_factory=Counter)  # by bearer token
    forms: list[dict[str, str]] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)
    key_sets: int = 0
    key_set_read_at: float = 0.0  # when it was last asked for
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._serial = 1
        self.keys = [new_key(1)]  # the current one, then the previous
        self._published = self.keys
        self._wrapping = AESGCM(os.urandom(32))
        self.live: dict[str, Account] = {}  # by bearer token
        self._answering = asyncio.Event()
        self._answering.set()

    def issue(
        self, sub: str = "sa-1", *, acctype: str = "service", orgs: tuple[str, ...] = ("org-1",), lives_s: float = 3600
    ) -> str:
        """Return a new bearer token: a JWS in a JWE that only this service can open."""
        now = self.clock.now()
        account = Account(sub, acctype, list(orgs), now + lives_s)
        inner = self.keys[0].token({"iss": self.issuer, "sub": sub, "iat": now, "exp": account.expires_at})
        bearer = self._sealed(inner)
        self.live[bearer] = account
        return bearer

    def account(self, bearer: str) -> Account:
        return self.live[bearer]

    def revoke(self, bearer: str) -> None:
        del self.live[bearer]

    def id_token(self, sub: str = "user@example.com") -> str:
        """Return what the same key signs for browsers, and what must open no door here."""
        now = self.clock.now()
        return self.keys[0].token({"iss": self.issuer, "aud": "console", "sub": sub, "iat": now, "exp": now + 3600})

    def passport(self, account: Account, **asked: str) -> str:
        now = self.clock.now()
        account.passports += 1
        account.vouched_until = min(now + self.passport_s, account.expires_at)
        claims: dict[str, Any] = {
            "iss": "uni-identity", "typ": "passport", "sub": account.sub, "acctype": account.acctype,
            "source": "uni", "src_iss": "uni", "org_ids": account.org_ids, "jti": os.urandom(8).hex(),
            "iat": int(now), "nbf": int(now), "exp": account.vouched_until,
        }  # fmt: skip
        if asked.get("audience"):
            claims["aud"] = [asked["audience"]]
        if asked.get("x_organization_id"):
            claims["org_id"] = asked["x_organization_id"]
        if asked.get("x_project_id"):
            claims["project_id"] = asked["x_project_id"]
        claims = {name: value for name, value in (claims | self.changes).items() if value is not None}
        return self.keys[0].token(claims)

    def rotate(self) -> None:
        """Sign with a new key from now on; the one before stays published, any older one does not."""
        self._serial += 1
        self.keys = [new_key(self._serial), self.keys[0]]
        if self.publishes:
            self.publish()

    def publish(self) -> None:
        self._published = self.keys

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
        return f"{self._origin}/oauth2/v2/jwks"

    @property
    def token_url(self) -> str:
        return f"{self._origin}/oauth2/v2/token"

    @property
    def userinfo_url(self) -> str:
        return f"{self._origin}/oauth2/v2/userinfo"

    @property
    def introspection_url(self) -> str:
        """RFC 7662, as other identity services have it."""
        return f"{self._origin}/introspect"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/oauth2/v2/jwks", self._jwks)
        app.router.add_post("/oauth2/v2/token", self._token)
        app.router.add_route("*", "/oauth2/v2/userinfo", self._userinfo)
        app.router.add_post("/introspect", self._introspect)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._port = free_port()
        self._origin = f"http://127.0.0.1:{self._port}"
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer()
        await self._runner.cleanup()

    async def up(self) -> None:
        """Listen."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()

    async def down(self) -> None:
        """Refuse connections from now on, and close those that are there."""
        await self._site.stop()
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            connection.force_close()
            if connection.transport is not None:
                connection.transport.abort()

    async def _discovery(self, _: web.Request) -> web.Response:
        return web.json_response({
            "issuer": self.issuer, "jwks_uri": self.jwks, "token_endpoint": self.token_url,
            "userinfo_endpoint": self.userinfo_url, "id_token_signing_alg_values_supported": ["ES512"],
        })  # fmt: skip

    async def _jwks(self, _: web.Request) -> web.Response:
        self.key_sets += 1
        self.key_set_read_at = self.clock.now()
        await self._answering.wait()
        body = json.dumps({"keys": [key.jwk() for key in self._published]}).encode()
        return web.Response(body=body, headers={"Cache-Control": "no-cache"})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        if (early := await self._begun(request, form.get("subject_token", ""))) is not None:
            return early
        if self.client is not None and request.headers.get("Authorization") != _basic(*self.client):
            return _refusal(401, "invalid_client")
        asked = form.get("grant_type"), form.get("subject_token_type"), form.get("requested_token_type", PASSPORT)
        if asked not in {(EXCHANGE, ACCESS_TOKEN, PASSPORT), (EXCHANGE, ACCESS_TOKEN, ACCESS_TOKEN)}:
            return _refusal(400, "invalid_request")
        account = self._account(form.get("subject_token", ""))
        if account is None:
            return _refusal(401, "access_denied")
        if form.get("x_organization_id", account.org_ids[0] if account.org_ids else "") not in {*account.org_ids, ""}:
            return _refusal(400, "invalid_scope")
        passport = self.passport(account, **form)
        return web.json_response(
            {"token_type": "Bearer", "access_token": passport, "expires_in": 60, "issued_token_type": PASSPORT}
        )

    async def _userinfo(self, request: web.Request) -> web.Response:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if (early := await self._begun(request, bearer)) is not None:
            return early
        account = self._account(bearer)
        if account is None:
            return _refusal(401, "access_denied")
        authz = {"acctype": account.acctype, "orgIds": account.org_ids}
        return web.json_response({"sub": account.sub, "https://unikorn-cloud.org/authz": authz})

    async def _introspect(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        if (early := await self._begun(request, form["token"])) is not None:
            return early
        if self.client is not None and request.headers.get("Authorization") != _basic(*self.client):
            return _refusal(401, "invalid_client")
        account = self._account(form["token"])
        if account is None:
            return web.json_response({"active": False})
        claims = {"active": True, "sub": account.sub, "iss": self.issuer, "exp": account.expires_at, "org_id": "org-1"}
        return web.json_response({name: value for name, value in (claims | self.changes).items() if value is not None})

    async def _begun(self, request: web.Request, bearer: str) -> web.Response | None:
        """Count a question; wait and fail as it is set. None: answer it."""
        self.asked[bearer] += 1
        if self.drops and request.transport is not None:
            self.drops -= 1
            request.transport.abort()
        self.cookies.append(request.headers.get("Cookie", ""))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._answering.wait()
        finally:
            self.at_once -= 1
        return None if self.says is None else web.Response(status=self.says[0], text=self.says[1], headers=self.headers)

    def _account(self, bearer: str) -> Account | None:
        account = self.live.get(bearer)
        if account is None or self.clock.now() >= account.expires_at or self._opened(bearer) is None:
            return None
        return account

    def _sealed(self, inner: str) -> str:
        """Encrypt as A256GCMKW with A256GCM (RFC 7518 sections 4.7 and 5.3), in compact form."""
        content_key, wrapping_nonce, nonce = os.urandom(32), os.urandom(12), os.urandom(12)
        wrapped = self._wrapping.encrypt(wrapping_nonce, content_key, None)
        header = {
            "alg": "A256GCMKW", "enc": "A256GCM", "typ": "at+jwt", "cty": "JWT", "kid": self.keys[0].key_id,
            "iv": b64(wrapping_nonce), "tag": b64(wrapped[-TAG_BYTES:]),
        }  # fmt: skip
        head = b64(json.dumps(header).encode())
        sealed = AESGCM(content_key).encrypt(nonce, inner.encode(), head.encode())
        parts = (wrapped[:-TAG_BYTES], nonce, sealed[:-TAG_BYTES], sealed[-TAG_BYTES:])
        return ".".join([head, *map(b64, parts)])

    def _opened(self, bearer: str) -> str | None:
        head, key, nonce, sealed, tag = bearer.split(".")
        header = json.loads(_unb64(head))
        content_key = self._wrapping.decrypt(_unb64(header["iv"]), _unb64(key) + _unb64(header["tag"]), None)
        return AESGCM(content_key).decrypt(_unb64(nonce), _unb64(sealed) + _unb64(tag), head.encode()).decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _basic(client_id: str, secret: str) -> str:
    return aiohttp.encode_basic_auth(quote_plus(client_id), quote_plus(secret))


def _refusal(status: int, error: str) -> web.Response:
    return web.json_response({"error": error, "error_description": "canary: never shown"}, status=status)
