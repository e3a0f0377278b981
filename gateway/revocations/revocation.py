"""One revocation as a value, and as the store keeps it: a name that says what is revoked, and JSON that says the rest.

    tenant acme                 {"reason": "not paid", "set_at": "2026-11-30T09:00:00Z"}
    key acme batch              {"reason": "leaked", "set_at": …}
    token acme 7c1e0d           {"set_at": …, "until": "2026-11-30T11:00:00Z"}

What the store keeps is judged by each gateway for itself: a revocation that can hold, or why it is left out.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gateway.admission.ledger.account import decoded, encoded
from gateway.admission.settings.entry import Entry, judged
from gateway.admission.settings.members import end_in, kept_members, name_in, only, shown, times, times_in
from gateway.errors import InvalidValue

# What stands in a list beside the rest of its row.
MAX_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Revocation:
    """All tokens of a tenant, those of one of its `key`s, or its one token of this `jti`, for a `reason` of operators.

    `until` and `set_at` are whole seconds since the epoch; without `until` it holds until it is undone.
    """

    tenant: str
    key: str | None
    jti: str | None
    reason: str | None
    set_at: int
    until: int | None

    @property
    def name(self) -> str:
        """The name under which it is kept."""
        return place(self.tenant, self.key, self.jti)

    def value(self) -> bytes:
        """Return what is kept under the name."""
        reason = {} if self.reason is None else {"reason": self.reason}
        return json.dumps(reason | times(self.set_at, self.until)).encode()


def judge(name: str, value: bytes) -> Entry[Revocation]:
    """Return the entry that is kept so."""
    return judged(name, value, read=_read)


def asked(members: Mapping[str, object], *, now_s: float) -> Revocation:
    """Return what an operator asks for: `tenant`, perhaps `key` or `jti`, perhaps a `reason` and `for` how long.

    Raises:
        InvalidValue: a member is wrong; `param` is its name.
    """
    only(members, ("tenant", "key", "jti", "reason", "for"))
    tenant, key, jti = _whose(members)
    return Revocation(tenant, key, jti, _reason_in(members), math.ceil(now_s), end_in(members, now_s=now_s))


def place_asked(members: Mapping[str, object]) -> str:
    """Return the name of the revocation that is meant: of `tenant`, and perhaps its `key` or `jti`.

    Raises:
        InvalidValue: as `asked`.
    """
    only(members, ("tenant", "key", "jti"))
    return place(*_whose(members))


def place(tenant: str, key: str | None, jti: str | None) -> str:
    """Return the name of the revocation of a tenant, of one of its keys, or of one of its tokens."""
    kind, of = ("tenant", None) if key is None and jti is None else ("key", key) if jti is None else ("token", jti)
    return " ".join([kind, encoded(tenant), *([] if of is None else [encoded(of)])])


def _read(name: str, value: bytes) -> Revocation:
    tenant, key, jti = _placed(name)
    members = kept_members(value)
    set_at, until = times_in(members)
    only(members, ("reason",))
    return Revocation(tenant, key, jti, _reason_in(members), set_at, until)


def _placed(name: str) -> tuple[str, str | None, str | None]:
    """Return tenant, key and token of the place that is called so."""
    kind, *words = name.split(" ")
    with suppress(UnicodeDecodeError):
        tenant, of = [*[decoded(word) for word in words], None, None][:2]
        key, jti = (of, None) if kind == "key" else (None, of)
        if tenant and place(tenant, key, jti) == name:
            return tenant, key, jti
    raise InvalidValue("Its name is not one of a revocation.")


def _whose(members: Mapping[str, object]) -> tuple[str, str | None, str | None]:
    if "key" in members and "jti" in members:
        raise InvalidValue("A key is revoked, or one token by its jti; give one of them.", param="jti")
    key, jti = (name_in(members, member) if member in members else None for member in ("key", "jti"))
    return name_in(members, "tenant"), key, jti


def _reason_in(members: Mapping[str, object]) -> str | None:
    reason = members.get("reason")
    if reason is None:
        return None
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARACTERS:
        told = f"reason must be a text of at most {MAX_REASON_CHARACTERS} characters, not {shown(reason)}."
        raise InvalidValue(told, param="reason")
    return reason
