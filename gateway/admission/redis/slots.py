"""A cluster's slots: which one a tag has, who has which, and where a node says that something is now. No I/O."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis.crc import key_slot

from gateway.admission.rules import REMEMBERED
from gateway.config.store_url import Address

SLOTS = 16384


class Range(NamedTuple):
    """Slots from `start` to before `end`, and where their master is."""

    start: int
    end: int
    master: Address


@lru_cache(maxsize=REMEMBERED)
def slot_of(tag: str) -> int:
    """Return the slot of every key with this hash tag."""
    return key_slot(tag.encode())


def ranges(reply: Sequence[Any], *, asked: Address) -> tuple[list[Range], set[Address]]:
    """Return what `CLUSTER SLOTS` replied: the ranges, and all nodes that are named.

    A node that does not know its own address leaves that out: it is where it was `asked`.
    """
    found: list[Range] = []
    nodes: set[Address] = set()
    for start, end, *of_range in reply:
        places = [(host.decode() if host else asked[0], int(port)) for host, port, *_ in of_range]
        known = [place for place in places if place[0] != "?"]
        nodes.update(known)
        if places and places[0] in known:
            found.append(Range(int(start), int(end) + 1, places[0]))
    return found, nodes


def moved(error: str, *, asked: Address) -> tuple[int, Address] | None:
    """Return which slot an error says has moved, and where to; None: it says that something is moving just now.

    `MOVED 3999 127.0.0.1:6381`; without a host it is where it was `asked`. `ASK` and `TRYAGAIN` are about keys of a
    slot that is being moved. A call's keys are then on two nodes, or some are on none yet, and neither would take it.
    """
    word, *rest = error.split()
    if word != "MOVED":
        return None
    slot, place = rest
    host, _, port = place.rpartition(":")
    return int(slot), (host or asked[0], int(port))


def tags() -> Iterator[tuple[str, int]]:
    """Yield tags that no tenant has, each with its slot, until most slots of a cluster have come."""
    for number in range(SLOTS // 8):
        tag = f"try-{number}"
        yield tag, key_slot(tag.encode())
