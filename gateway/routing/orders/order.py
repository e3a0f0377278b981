"""One order of an operator for a replica as a value, and as the store keeps it: a name that says which, and JSON.

    drain main http%3A%2F%2F10.0.0.5%3A8000     {"order": "drained", "set_at": "2026-11-30T09:00:00Z"}
    member main http%3A%2F%2F10.0.0.5%3A8000    {"order": "added", "weight": 2, "set_at": …, "until": …}

A replica is drained or not, and apart from that it is added, removed, or there as the config says.
"""

import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from pydantic import ValidationError

from gateway.admission.ledger.account import decoded, encoded
from gateway.admission.settings.entry import Entry, judged
from gateway.admission.settings.members import end_in, kept_members, name_in, only, shown, times, times_in
from gateway.config import ReplicaEntry
from gateway.config.pools import address
from gateway.errors import InvalidValue

What = Literal["drained", "added", "removed"]
WHATS: tuple[What, ...] = get_args(What)

# What an order says of a replica that is added, as the config's entry of one does.
SAID = ("weight", "served_name", "server_name", "max_in_flight")


@dataclass(frozen=True, slots=True)
class Order:
    """What shall become of the replica of `pool` at `entry.url`; `until` and `set_at` are seconds since the epoch."""

    what: What
    pool: str
    entry: ReplicaEntry
    set_at: int
    until: int | None

    @property
    def name(self) -> str:
        """The name under which it is kept."""
        return place(self.what, self.pool, self.entry.url)

    def value(self) -> bytes:
        """Return what is kept under the name."""
        return json.dumps({"order": self.what} | self.said | times(self.set_at, self.until)).encode()

    @property
    def said(self) -> dict[str, Any]:
        """What it says of the replica beside where it is."""
        return self.entry.model_dump(include={*SAID}, exclude_unset=True)


def judge(name: str, value: bytes, pools: Collection[str]) -> Entry[Order]:
    """Return the entry that is kept so; it holds where the config has its pool."""
    return judged(name, value, read=_read, check=partial(check, pools=pools))


def check(order: Order, pools: Collection[str]) -> None:
    """Hold an order against the names of the config's pools.

    Raises:
        InvalidValue: there is no such pool.
    """
    if order.pool not in pools:
        raise InvalidValue(f"There is no pool {shown(order.pool)}; there are {', '.join(pools)}.", param="pool")


def asked(members: Mapping[str, object], *, now_s: float) -> Order:
    """Return what an operator asks for: an `order` for the replica of `pool` at `url`, perhaps `for` how long.

    What is added may have what the config's entry of a replica has.

    Raises:
        InvalidValue: a member is wrong; `param` is its name.
    """
    only(members, ("pool", "order", "url", *SAID, "for"))
    what = _what_in(members)
    return Order(
        what, name_in(members, "pool"), _entry_in(members, what), math.ceil(now_s), end_in(members, now_s=now_s)
    )


def place_asked(members: Mapping[str, object]) -> str:
    """Return the name of the order that is meant: that `pool` has the replica at `url` `drained`; or added or removed.

    Raises:
        InvalidValue: as `asked`.
    """
    only(members, ("pool", "order", "url"))
    what = _what_in(members)
    return place(what, name_in(members, "pool"), _entry_in(members, what).url)


def place(what: What, pool: str, url: str) -> str:
    """Return the name of an order. What is added and what is removed have the same: the last one holds."""
    return f"{'drain' if what == 'drained' else 'member'} {encoded(pool)} {encoded(url)}"


def _read(name: str, value: bytes) -> Order:
    members = kept_members(value)
    set_at, until = times_in(members)
    only(members, ("order", *SAID))
    what = _what_in(members)
    with suppress(UnicodeDecodeError, ValueError):
        _, pool, url = name.split(" ")
        order = Order(what, decoded(pool), _entry_in({**members, "url": decoded(url)}, what), set_at, until)
        if order.name == name:
            return order
    raise InvalidValue("Its name is not one of such an order.")


def _what_in(members: Mapping[str, object]) -> What:
    for what in WHATS:
        if members.get("order") == what:
            return what
    raise InvalidValue(f"order must be one of {', '.join(WHATS)}.", param="order")


def _entry_in(members: Mapping[str, object], what: What) -> ReplicaEntry:
    """Return the replica that is meant, its URL in the one way that all ways of writing it come to.

    What is wrong is not shown: it may hold a password.
    """
    given = {member: members[member] for member in ("url", *SAID) if member in members}
    if what != "added" and len(given) > 1:
        raise InvalidValue(
            f"Only what is added has {', '.join(SAID)}.", param=next(one for one in SAID if one in given)
        )
    try:
        entry = ReplicaEntry.model_validate(given)
    except ValidationError as error:
        param = str(error.errors()[0]["loc"][0])
        told = {
            "url": "url must be http(s)://host or http(s)://host:port, perhaps with a path, without user, query or #",
            "weight": "weight must be a number above 0, at most 1000",
            "server_name": "server_name must be a host name, such as engine.example.com",
            "max_in_flight": "max_in_flight must be a whole number from 1 to 1000000",
        }
        raise InvalidValue(f"{told.get(param, f'{param} must be a name')}.", param=param) from None
    return entry.model_copy(update={"url": address(entry.url)})
