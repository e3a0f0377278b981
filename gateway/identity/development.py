"""The development key: an EC P-256 private key in a PEM file, with which `gateway token` signs tokens offline.

Tokens signed with it are accepted only where `auth.development_key` names the file. Serving reads it, never creates it.
"""

import asyncio
import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from gateway import config
from gateway.identity.keys import KeySetUnusable
from gateway.identity.sources import Document

ISSUER = config.DEVELOPMENT_ISSUER
_ALGORITHM = "ES256"


class DevelopmentKeyUnusable(KeySetUnusable):
    """The file of `auth.development_key` is absent or holds no such key. The message can be printed as it is."""


def issuer(path: str) -> config.Issuer:
    """Return the issuer's entry that a configured development key amounts to."""
    claims = config.Claims(tenant="tenant", key="key", plan="plan", models="models")
    return config.Issuer(issuer=ISSUER, jwks=path, algorithms=(_ALGORITHM,), claims=claims)


def load(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the key.

    Raises:
        DevelopmentKeyUnusable: the file is absent, unreadable, or not an EC P-256 private key in PEM.
    """
    where = f"auth.development_key: {path}"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise DevelopmentKeyUnusable(
            f"{where} does not exist. `gateway token` creates it; without the setting no development token is accepted."
        ) from error
    except OSError as error:
        raise DevelopmentKeyUnusable(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it asks for a password
        raise DevelopmentKeyUnusable(f"{where} is not an unencrypted private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise DevelopmentKeyUnusable(f"{where} is not an EC P-256 key. Remove it and let `gateway token` create one.")
    return key


def load_or_create(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the key, or make one in a new file that only its owner may read.

    Raises:
        DevelopmentKeyUnusable: as `load`; or the file cannot be created.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
    except FileExistsError:
        return load(path)
    except OSError as error:
        raise DevelopmentKeyUnusable(f"auth.development_key: {path} cannot be created: {error.strerror}") from error
    return key


def sign(
    key: ec.EllipticCurvePrivateKey, *, tenant: str, key_id: str, plan: str | None, ttl_s: float, now: float
) -> str:
    """Return a token for `key_id` of `tenant` that is valid from `now` (seconds since the epoch) for `ttl_s`."""
    claims = {"iss": ISSUER, "iat": int(now), "exp": int(now + ttl_s), "tenant": tenant, "key": key_id}
    if plan is not None:
        claims["plan"] = plan
    return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": _jwk(key)["kid"]})


async def read_key_set(path: Path) -> Document:
    """Return the public half as a JWK Set: the `Source` of the development issuer's keys."""
    key = await asyncio.to_thread(load, path)
    return Document(json.dumps({"keys": [_jwk(key)]}).encode())


def _jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    public = key.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    key_id = base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode()
    return {**ECAlgorithm.to_jwk(public, as_dict=True), "kid": key_id, "alg": _ALGORITHM, "use": "sig"}
