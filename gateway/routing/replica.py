"""One engine server, and how it is doing."""

import json
import math
from hashlib import blake2b
from urllib.parse import urlsplit

from gateway.config import PoolEntry, ReplicaEntry
from gateway.config.pools import address
from gateway.routing.breaker import Breaker
from gateway.routing.engine_load import EngineLoad
from gateway.routing.pace import Pace

# The share of its KV cache from which on an engine counts as crowded: vLLM preempts calls when it is used up.
CROWDED = 0.9


class Replica:
    """Where an engine listens, and its state in this process: calls in flight, and whether probes find it up.

    `rests_until`: it said that it is full, and when to come again (the clock's monotonic seconds). `drained`: operators
    want no more calls to go to it. `gone`: it belongs to its pool no longer, but for the calls that it still has.
    `earned` is its balance's. `load` is what the engine told of itself at `told_at`, if it was asked; `others` is how
    many calls it has besides those in flight from here, as far as that tells. `weight` is less than `full_weight` while
    it warms up.
    `most` is how many calls it may have in flight, infinity where nothing says so.
    `name` is its host and port (and path, if its URL has one), as metrics and logs show it; no client ever sees it.
    """

    __slots__ = (
        "_build", "authorization", "base_path", "breaker", "drained", "earned", "fingerprint", "full_weight", "gone",
        "host", "in_flight", "load", "most", "name", "others", "pace", "port", "rests_until", "seed", "served_name",
        "server_name", "tls", "told_at", "up", "url", "warming_since", "weight",
    )  # fmt: skip

    def __init__(self, entry: ReplicaEntry, pool: PoolEntry) -> None:
        url = urlsplit(entry.url)
        self.tls = url.scheme == "https"
        self.host = url.hostname or ""
        self.port = url.port or (443 if self.tls else 80)
        self.base_path = url.path.rstrip("/")
        self.name = f"{_authority(self.host, self.port)}{self.base_path}"
        self.url = address(entry.url)
        self.seed = int.from_bytes(blake2b(self.url.encode(), digest_size=8).digest())  # the same in every gateway
        self.in_flight = 0
        self.up = True
        self.drained = self.gone = False
        self.earned: float | None = None
        self.load: EngineLoad | None = None
        self.others = 0.0
        self.told_at = 0.0
        self.warming_since: float | None = None
        self.breaker = Breaker(pool.breaker)
        self.rests_until = 0.0
        self.pace = Pace()
        self.fingerprint: bytes | None = None  # how its last answer named its build, as a JSON member
        self._build: object = None  # that name, which is spelt anew only when it changes
        self.configure(entry, pool)

    def configure(self, entry: ReplicaEntry, pool: PoolEntry) -> None:
        """Go by these entries from now on. The URL is the same; how it does stays as it is."""
        self.authorization = f"Bearer {pool.api_key.get_secret_value()}" if pool.api_key else None
        self.served_name = entry.served_name
        self.server_name = entry.server_name or self.host  # what it shows in TLS, and is called in Host
        self.full_weight = entry.weight
        self.weight = entry.weight
        most = entry.max_in_flight or pool.max_in_flight
        self.most: float = math.inf if most is None else most
        self.breaker.configure(pool.breaker)

    def told(self, load: EngineLoad | None, *, now: float = 0.0) -> None:
        """Take what the engine tells of its load: what of it does not come from here is `others`' until it tells anew.

        Where its cache is nearly full, whatever comes will wait: it counts as up to twice as loaded.
        """
        self.load = load
        self.told_at = now
        if load is None:
            self.others = 0.0
            return
        crowded = max(0.0, (load.cache_used or 0.0) - CROWDED) / (1 - CROWDED)
        calls = load.running + load.waiting
        self.others = max(0.0, calls - self.in_flight) + crowded * calls

    def learn(self, fingerprint: object) -> None:
        """Take in how a complete answer named the engine's build: empty where it did not, None if nobody knows."""
        if fingerprint != self._build and isinstance(fingerprint, str):
            self._build = fingerprint
            member = f',"system_fingerprint":{json.dumps(fingerprint, ensure_ascii=False)}'
            self.fingerprint = member.encode() if fingerprint else b""

    @property
    def authority(self) -> str:
        """The `Host` field."""
        return _authority(self.server_name, self.port)


def _authority(host: str, port: int) -> str:
    """Return host and port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
