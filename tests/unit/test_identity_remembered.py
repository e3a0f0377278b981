"""What is remembered of verified tokens, and for how long."""

import hashlib

import pytest

from gateway import config
from gateway.clock import SystemClock
from gateway.identity.accepted import Accepted
from gateway.identity.denied import Denied
from gateway.identity.keys import Keys
from gateway.identity.keyset import KeySet
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused
from gateway.identity.remembered import Remembered
from gateway.identity.sources import Document
from tests.identity_provider import key_set, signing_key


async def _nothing() -> Document:
    return Document(b'{"keys": []}')


def fresh_key_set() -> KeySet:
    entry = config.Issuer(issuer="idp", jwks="keys.json")
    return KeySet(entry, _nothing, clock=SystemClock(), observe=lambda _issuer, _result: None)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


ACME = Principal("acme", "k")


def test_a_token_is_remembered_until_the_very_second_it_expires() -> None:
    remembered, keys = Remembered(), fresh_key_set()
    remembered.put(digest("a"), Accepted(ACME, 105.0, keys))
    assert remembered.get(digest("a"), 104.99) is ACME
    assert remembered.get(digest("b"), 104.99) is None
    assert remembered.get(digest("a"), 105.0) is None
    assert remembered.get(digest("a"), 0.0) is None  # forgotten for good, even if the clock goes back


def test_a_change_of_keys_makes_every_token_of_that_issuer_prove_itself_again() -> None:
    remembered, ours, others = Remembered(), fresh_key_set(), fresh_key_set()
    remembered.put(digest("ours"), Accepted(ACME, 1e9, ours))
    remembered.put(digest("theirs"), Accepted(ACME, 1e9, others))
    remembered.put(digest("unsigned"), Accepted(ACME, 1e9, None))
    ours.keys = Keys.parse(key_set(signing_key("k1", "ES256")))
    assert remembered.get(digest("ours"), 0.0) is None
    assert remembered.get(digest("theirs"), 0.0) is ACME
    assert remembered.get(digest("unsigned"), 0.0) is ACME


def test_the_oldest_goes_first_when_memory_is_full() -> None:
    remembered, keys = Remembered(capacity=3), fresh_key_set()
    for token in "abcd":
        remembered.put(digest(token), Accepted(ACME, 1e9, keys))
    assert [token for token in "abcd" if remembered.get(digest(token), 0.0)] == ["b", "c", "d"]


def test_who_is_denied_is_refused_without_being_verified_again_until_that_ends() -> None:
    remembered, keys = Remembered(), fresh_key_set()
    tokens = {"of a key": ACME, "one": Principal("acme", "other", token_id="j")}
    tokens["good"] = Principal("acme", "other", token_id="another")
    remembered.put(digest("of a key"), Accepted(ACME, 1e9, keys))
    denied = Denied(keys=frozenset({("acme", "k")}), tokens=frozenset({("acme", "j")}))
    remembered.deny(denied)
    with pytest.raises(TokenRefused):
        remembered.put(digest("one"), Accepted(tokens["one"], 1e9, None))
    remembered.put(digest("good"), Accepted(tokens["good"], 1e9, keys))
    for token in ("of a key", "one"):
        for _ in range(2):
            with pytest.raises(TokenRefused) as refused:
                remembered.get(digest(token), 0.0)
            assert refused.value.reason == "revoked"
    assert remembered.get(digest("good"), 0.0) is tokens["good"]
    remembered.deny(Denied())
    assert [remembered.get(digest(token), 0.0) for token in tokens] == list(tokens.values())
