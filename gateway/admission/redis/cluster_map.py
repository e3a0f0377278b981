"""Which master has which slots, as a cluster's nodes tell it: of several, the one that knows the latest change."""

import random
from collections.abc import Iterable

from gateway.admission.redis.answers import ANSWER_WITHIN_S, answers
from gateway.admission.redis.command import pack
from gateway.admission.redis.connection import CommandRefused, ServerFailed, replies
from gateway.admission.redis.server import Server
from gateway.admission.redis.slots import Range, ranges
from gateway.config.store_url import Address, StoreUrl

# So many nodes are asked at once: some may be away, and some cut off.
_ASKED = 5

_QUESTION = [pack(["CLUSTER", "INFO"]), pack(["CLUSTER", "SLOTS"])]


async def ask_map(url: StoreUrl, nodes: Iterable[Address]) -> tuple[list[Range], set[Address]]:
    """Return what has which slots, and all nodes that there are; `nodes` are those to ask.

    Raises:
        OSError: none can be reached in time.
        ServerFailed: none is a node of a cluster that lets us in.
    """
    known = list(nodes)
    asked = random.sample(known, min(_ASKED, len(known)))
    told = await answers([_ask(url, place) for place in asked])
    _, found, places = max(told, key=lambda one: one[0])
    return found, places


async def _ask(url: StoreUrl, place: Address) -> tuple[int, list[Range], set[Address]]:
    server = Server(url.server(place), (), last=lambda: ())
    connection = await server.connect(within_s=ANSWER_WITHIN_S)
    try:
        info, slots = await replies(connection, _QUESTION)
    finally:
        connection.abort()
    for reply in (info, slots):
        if isinstance(reply, CommandRefused):
            raise ServerFailed(str(reply))
    facts = dict(line.partition(":")[::2] for line in info.decode().splitlines())
    found, places = ranges(slots, asked=place)
    return int(facts.get("cluster_current_epoch", 0)), found, places
