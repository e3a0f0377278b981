"""Replicas named in the DNS: the addresses of a name, or what its SRV records point at."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.rdatatype
import dns.resolver
import dns.rrset

from gateway import background
from gateway.clock import Clock
from gateway.config import DnsEntry, ReplicaEntry
from gateway.config.discovery import dns_server
from gateway.routing.discovery.dns_sockets import DnsSockets
from gateway.routing.discovery.found import Doubt, url_of
from gateway.routing.discovery.source import Away, Take

# However short its records live: a name is no reason to ask without end.
SHORTEST_S = 1.0
# A name that has nothing is asked sooner than `interval` says, for its pool may serve nobody.
EMPTY_AGAIN_S = 5.0
# Until the next of the resolver's servers is asked.
_PATIENCE_S = 1.5
# Targets of SRV records that are looked up at once, where their addresses did not come with them.
_AT_ONCE = 16
_SOCKETS = DnsSockets()
_Result = TypeVar("_Result")
_FAMILIES = {"both": ("A", "AAAA"), "ipv4": ("A",), "ipv6": ("AAAA",)}


class Record(NamedTuple):
    """One SRV record (RFC 2782)."""

    priority: int
    weight: int
    port: int
    target: str


class Answer(NamedTuple):
    """What a look-up found, and for how long it may be kept; None: nobody said."""

    entries: tuple[ReplicaEntry, ...]
    ttl_s: float | None


class DnsSource:
    """Asks again when the records have lived, within `SHORTEST_S` and `interval`."""

    def __init__(self, entry: DnsEntry, clock: Clock) -> None:
        self.longest_pause_s = entry.interval
        self._entry = entry
        self._clock = clock
        self._doubt = Doubt(for_s=entry.empty_after)

    async def follow(self, take: Take) -> None:
        """Tell which addresses there are.

        Raises:
            Away: no server answered in time, or what came was no answer.
        """
        while True:
            answer = await self._ask()
            take(self._doubt.believed(answer.entries, self._clock.monotonic()))
            await asyncio.sleep(wait_s(answer, interval_s=self._entry.interval))

    async def _ask(self) -> Answer:
        look_up = _LookUp(self._entry)
        try:
            async with asyncio.timeout(self._entry.timeout):
                return await look_up.run()
        except TimeoutError as error:
            raise Away(f"{self._entry.name}: no answer within {self._entry.timeout:g} s") from error
        except (dns.exception.DNSException, OSError, ValueError) as error:
            text = " ".join(str(error).split())[:300]
            raise Away(f"{self._entry.name}: {text or type(error).__name__}") from error


class _LookUp:
    """One look-up, of as many questions as it takes. `run` raises what dnspython does."""

    def __init__(self, entry: DnsEntry) -> None:
        self._entry = entry
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._ttls: list[float] = []

    async def run(self) -> Answer:
        # Made in a thread, because it reads resolv.conf; and each time, because that may change.
        self._resolver = await background.apart(self._new_resolver)
        entry = self._entry
        if entry.port is not None:
            found = [(address, entry.port, 1.0) for address in await self._addresses(entry.name)]
        else:
            found = await self._services()
        entries = [
            ReplicaEntry(url=url_of(entry.scheme, address, port), weight=weight, server_name=entry.host)
            for address, port, weight in found
        ]
        return Answer(tuple(entries), min(self._ttls, default=None))

    async def _services(self) -> list[tuple[str, int, float]]:
        answer = await self._question(self._entry.name, "SRV")
        if answer is None or answer.rrset is None:
            return []
        records = weighed(Record(one.priority, one.weight, one.port, str(one.target)) for one in answer.rrset)
        came_along = _by_name(answer.response.additional)

        async def resolve(target: str) -> list[str]:
            return self._of_family(came_along[target]) if target in came_along else await self._addresses(target)

        targets = await _all(resolve(record.target.lower()) for record, _ in records)
        return [
            (address, record.port, weight / len(addresses))
            for (record, weight), addresses in zip(records, targets, strict=True)
            for address in addresses
        ]

    async def _addresses(self, name: str) -> list[str]:
        answers = await _all(self._question(name, kind) for kind in _FAMILIES[self._entry.family])
        return [str(one.address) for answer in answers if answer is not None for one in answer.rrset or ()]

    async def _question(self, name: str, kind: str) -> dns.resolver.Answer | None:
        """Return the answer; None where the name does not exist."""
        try:
            async with self._turn:
                answer = await self._resolver.resolve(
                    name, kind, search=True, raise_on_no_answer=False, backend=_SOCKETS
                )
        except dns.resolver.NXDOMAIN:
            return None
        if answer.rrset is not None:
            self._ttls.append(float(answer.chaining_result.minimum_ttl))
        return answer

    def _of_family(self, records: Iterable[dns.rrset.RRset]) -> list[str]:
        wanted = {dns.rdatatype.from_text(kind) for kind in _FAMILIES[self._entry.family]}
        return [str(one.address) for rrset in records if rrset.rdtype in wanted for one in rrset]

    def _new_resolver(self) -> dns.asyncresolver.Resolver:
        resolver = dns.asyncresolver.Resolver(configure=not self._entry.servers)
        if self._entry.servers:
            resolver.nameservers = [
                dns.nameserver.Do53Nameserver(*dns_server(server)) for server in self._entry.servers
            ]
        resolver.timeout = min(_PATIENCE_S, self._entry.timeout / 2)
        resolver.lifetime = self._entry.timeout
        return resolver


def weighed(records: Iterable[Record]) -> list[tuple[Record, float]]:
    """Return the records of the first priority there is, each with its share of the heaviest's weight.

    Those of later priorities are for when the first are all gone, which probes decide here and not the DNS. A target of
    "." says that there is no such service.
    """
    there = [record for record in records if record.target != "."]
    first = min((record.priority for record in there), default=0)
    chosen = [record for record in there if record.priority == first]
    heaviest = max((record.weight for record in chosen), default=0) or 1
    # A weight of 0 among others is for a small chance (RFC 2782).
    return [(record, (max(record.weight, 1)) / heaviest) for record in chosen]


def wait_s(answer: Answer, *, interval_s: float) -> float:
    """Return how long to wait before the name is looked up again."""
    if not answer.entries:
        return min(interval_s, EMPTY_AGAIN_S)
    return interval_s if answer.ttl_s is None else min(interval_s, max(answer.ttl_s, SHORTEST_S))


async def _all(work: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Return all results, or raise the first error once all is over: nothing goes on unobserved."""
    results = await asyncio.gather(*work, return_exceptions=True)
    found: list[_Result] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def _by_name(records: Iterable[dns.rrset.RRset]) -> dict[str, list[dns.rrset.RRset]]:
    found: dict[str, list[dns.rrset.RRset]] = {}
    for rrset in records:
        if rrset.rdtype in {dns.rdatatype.A, dns.rdatatype.AAAA}:
            found.setdefault(str(rrset.name).lower(), []).append(rrset)
    return found
