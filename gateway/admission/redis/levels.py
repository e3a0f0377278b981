"""Reads what is used of limits, for operators: on a connection of its own, changing nothing, booking nothing."""

import re
from collections.abc import Sequence

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from gateway.admission.limit import Limit, period, refill
from gateway.admission.redis.client import FAILURES, client, overwritten
from gateway.admission.store import StoreUnavailable
from gateway.config import store_url

_WITHIN_S = 1.0
_STATE = re.compile(rb"(\d+) (\d+)")


class RedisLevels:
    """Levels in the store at `url`."""

    def __init__(self, url: str) -> None:
        self._url = store_url.parse(url)

    async def used(self, limits: Sequence[Limit]) -> list[int]:
        """Return what is used of each of `limits` now, by the server's clock.

        Raises:
            StoreUnavailable: it cannot be read. Its cause says why.
        """
        try:
            async with await client(self._url, within_s=_WITHIN_S) as server:
                # Of a cluster any node's: their clocks differ by less than a look at a level may be late.
                one = {"target_nodes": RedisCluster.RANDOM} if isinstance(server, RedisCluster) else {}
                seconds, microseconds = await server.time(**one)
                now_us = seconds * 1_000_000 + microseconds
                pipeline = server.pipeline(transaction=False)
                for limit in limits:
                    if limit.kind == "lease":
                        pipeline.zcount(limit.key, f"({now_us}", "+inf")
                    else:
                        pipeline.get(limit.key)
                states = await pipeline.execute(raise_on_error=False)
            for state in states:
                if isinstance(state, ResponseError) and not overwritten(state):
                    raise state
        except FAILURES as error:
            raise StoreUnavailable(sent=True) from error
        return [_used(limit, state, now_us) for limit, state in zip(limits, states, strict=True)]


def _used(limit: Limit, state: object, now_us: int) -> int:
    if limit.kind == "lease":
        return state if isinstance(state, int) else 0
    found = _STATE.fullmatch(state) if isinstance(state, bytes) else None
    if found is None:
        return 0
    used, mark = map(int, found.groups())
    if limit.kind == "bucket":
        return refill(used, mark, now_us, limit.limit, limit.window_us)[0] if limit.limit else 0
    return used if mark == period(limit.kind, now_us)[0] else 0
