"""What is made of that which a source found: an answer in, the replicas of the pool out. Pure."""

from collections.abc import Collection, Sequence

from gateway.config import ReplicaEntry

Found = tuple[ReplicaEntry, ...]


def settled(found: Sequence[ReplicaEntry], *, known: Collection[ReplicaEntry], most: int) -> tuple[Found, int]:
    """Return each replica of an answer once, in one order whatever the answer's, and how many were left out.

    Where there are more than `most`, those that are known go before others: a pool must not change by chance.
    """
    by_url: dict[str, ReplicaEntry] = {}
    for entry in found:
        by_url.setdefault(entry.url, entry)
    here = {entry.url for entry in known}
    chosen = sorted(by_url, key=lambda url: (url not in here, url))[:most]
    return tuple([by_url[url] for url in sorted(chosen)]), len(by_url) - len(chosen)


def url_of(scheme: str, address: str, port: int) -> str:
    """Return the URL of an address, which is in brackets if it is one of IPv6."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


class Doubt:
    """Does not believe at once that a name which had addresses has none: such answers come from servers in trouble too.

    A replica that is gone indeed fails its probes, so waiting costs little,
    but a pool emptied by mistake refuses all calls.
    """

    def __init__(self, *, for_s: float) -> None:
        self._for_s = for_s
        self._last: Sequence[ReplicaEntry] = ()
        self._empty_since: float | None = None

    def believed(self, found: Sequence[ReplicaEntry], now: float) -> Sequence[ReplicaEntry]:
        """Return the answer; or the last that was not empty, until all have been empty for so long."""
        if found:
            self._last, self._empty_since = found, None
            return found
        if self._empty_since is None:
            self._empty_since = now
        if now - self._empty_since >= self._for_s:
            self._last = ()
        return self._last
