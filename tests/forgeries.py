"""Tokens that must not pass, whatever they look like: each made of the claims of a token that would."""

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import serialization

from gateway.identity.peek import MAX_PART_BYTES
from tests.identity_provider import SigningKey, b64, public_members, signing_key

K1 = signing_key("k1")
ATTACKER = signing_key("attacker")
OCT = b"a shared secret of thirty-two octets"
# The key set of the issuer, the shared secret that no key set should hold included.
KEYS = json.dumps({"keys": [K1.jwk(), {"kty": "oct", "kid": "oct", "alg": "HS256", "k": b64(OCT)}]})


def forgeries(claims: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """Return forgeries of a token that is good where the issuer is `claims["iss"]`, the audience gw, RS256 allowed."""

    def hs256(secret: bytes, key_id: str) -> str:
        text = b64(json.dumps({"alg": "HS256", "kid": key_id}).encode()) + "." + b64(json.dumps(claims).encode())
        return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"

    def pem(encoding: serialization.Encoding) -> bytes:
        return K1.private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)

    def spoiled_header(**members: object) -> str:
        return K1.token(claims, **members)

    def tampered() -> str:
        header, _, signature = K1.token(claims).split(".")
        return f"{header}.{b64(json.dumps({**claims, 'sub': 'root'}).encode())}.{signature}"

    return {
        "hs256-by-pem": lambda: hs256(pem(serialization.Encoding.PEM), "k1"),
        "hs256-by-der": lambda: hs256(pem(serialization.Encoding.DER), "k1"),
        "hs256-by-jwk": lambda: hs256(json.dumps(K1.jwk()).encode(), "k1"),
        "hs256-by-published-oct": lambda: hs256(OCT, "oct"),
        "none-unsigned": lambda: spoiled_header(alg="none").rsplit(".", 1)[0] + ".",
        "none-signed": lambda: spoiled_header(alg="none"),
        "no-alg": lambda: spoiled_header(alg=None),
        "alg-list": lambda: spoiled_header(alg=["RS256"]),
        "alg-other-case": lambda: spoiled_header(alg="rS256"),
        "alg-space": lambda: spoiled_header(alg="RS256 "),
        "alg-not-allowed": lambda: SigningKey("k1", "RS512", K1.private).token(claims),
        "crit": lambda: spoiled_header(crit=["x-foo"], **{"x-foo": 1}),
        "crit-empty": lambda: spoiled_header(crit=[]),
        "crit-b64": lambda: spoiled_header(crit=["b64"], b64=True),
        "b64-false": lambda: spoiled_header(b64=False),
        "jwk": lambda: ATTACKER.token(claims, kid="k1", jwk=public_members(ATTACKER.private)),
        "jwk-own-kid": lambda: ATTACKER.token(claims, jwk=ATTACKER.jwk()),
        "jku": lambda: ATTACKER.token(claims, kid="k1", jku="https://attacker.example/keys"),
        "x5u": lambda: ATTACKER.token(claims, kid="k1", x5u="https://attacker.example/cert"),
        "attacker-without-kid": lambda: ATTACKER.token(claims, kid=None),
        "kid-number": lambda: spoiled_header(kid=1),
        "kid-list": lambda: spoiled_header(kid=["k1"]),
        "kid-null": lambda: K1.raw('[{"alg":"RS256"}]', json.dumps(claims)),
        "kid-empty": lambda: spoiled_header(kid=""),
        "kid-path": lambda: spoiled_header(kid="../../k1"),
        "kid-newline": lambda: spoiled_header(kid="k1\n"),
        "iss-prefix": lambda: K1.token({**claims, "iss": "https://idp"}),
        "iss-suffix": lambda: K1.token({**claims, "iss": claims["iss"] + ".evil"}),
        "iss-slash": lambda: K1.token({**claims, "iss": claims["iss"] + "/"}),
        "iss-list": lambda: K1.token({**claims, "iss": [claims["iss"]]}),
        "iss-missing": lambda: K1.token({"exp": claims["exp"]}),
        "aud-missing": lambda: K1.token({"iss": claims["iss"], "sub": "s", "exp": claims["exp"]}),
        "aud-other": lambda: K1.token({**claims, "aud": ["other"]}),
        "exp-missing": lambda: K1.token({"iss": claims["iss"], "sub": "s", "aud": "gw"}),
        "sub-number": lambda: K1.token({**claims, "sub": 7}),
        "jwe": lambda: "a.b.c.d.e",
        "two-parts": lambda: "a.b",
        "empty-parts": lambda: "..",
        "not-base64": lambda: "!.~.+",
        "nested-10000-deep": lambda: K1.raw("[" * 4000, "[" * 4000),
        "payload-array": lambda: K1.raw('{"alg":"RS256","kid":"k1"}', "[]"),
        "payload-not-utf8": lambda: K1.raw('{"alg":"RS256","kid":"k1"}', "\udcff"),
        "payload-too-large": lambda: K1.token({**claims, "pad": "x" * MAX_PART_BYTES}),
        "tampered": tampered,
    }
