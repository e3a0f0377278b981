"""What EndpointSlices say of a Service's pods: lists and watch events in, replicas out. Pure.

A pod is a replica while it is ready and not about to end (`conditions.ready`, `conditions.terminating`). One that is in
slices of both families is one replica, at its IPv4 address.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from gateway.config import KubernetesEntry, ReplicaEntry
from gateway.routing.discovery.found import url_of

GONE = 410


class NotSlices(Exception):
    """This is not what an API server says of EndpointSlices, or nothing that can be gone by. The message says what."""


class Expired(Exception):
    """The server does not know any more what came after the version that was asked for: everything must be listed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod's address; `pod` is the same in every slice that has the pod."""

    address: str
    pod: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """One EndpointSlice: its endpoints, and its TCP ports by name."""

    ipv4: bool
    ports: tuple[tuple[str, int], ...]
    endpoints: tuple[Endpoint, ...]


class Slices:
    """All slices that the entry asks for, as last told. `version` is where a watch goes on from."""

    def __init__(self, entry: KubernetesEntry) -> None:
        self._entry = entry
        self._slices: dict[str, Slice] = {}
        self.version = ""

    def replace(self, listed: object) -> None:
        """Take in a whole list.

        Raises:
            NotSlices: it is none.
        """
        members = _mapping(listed, "the list")
        items = _sequence(members.get("items"), "items")
        self._slices = dict(_named(item) for item in items)
        self.version = _version(members)

    def apply(self, event: object) -> None:
        """Take in one event of a watch.

        Raises:
            Expired: the watch cannot go on.
            NotSlices: it is no event, or one of an error.
        """
        members = _mapping(event, "an event")
        kind, item = members.get("type"), _mapping(members.get("object"), "its object")
        if kind == "ERROR":
            if item.get("code") == GONE:
                raise Expired
            raise NotSlices(f"the watch ended with an error of code {_number(item.get('code'))}")
        if kind in ("ADDED", "MODIFIED"):
            name, one = _named(item)
            self._slices[name] = one
        elif kind == "DELETED":
            self._slices.pop(_name(item), None)
        elif kind != "BOOKMARK":
            raise NotSlices("an event is of no known type")
        self.version = _version(item)

    def found(self) -> list[ReplicaEntry]:
        """Return the pods that calls may go to.

        Raises:
            NotSlices: there are slices with endpoints, and none has the port that the entry asks for.
        """
        entry, found = self._entry, dict[str, ReplicaEntry]()
        met: set[str] = set()
        filled = [one for one in self._slices.values() if one.endpoints]
        ports = [self._port(one) for one in filled]
        if filled and not any(ports):
            raise NotSlices(f"no EndpointSlice has {_asked(entry.port)}")
        for ipv4 in (True, False):
            there = [(one, port) for one, port in zip(filled, ports, strict=True) if one.ipv4 is ipv4]
            for endpoint, port in [(endpoint, port) for one, port in there for endpoint in one.endpoints]:
                if endpoint.ready and port is not None and endpoint.pod not in met:
                    url = url_of(entry.scheme, endpoint.address, port)
                    found[url] = ReplicaEntry(url=url, server_name=entry.server_name)
            met |= {endpoint.pod for one, _ in there for endpoint in one.endpoints}
        return list(found.values())

    def _port(self, one: Slice) -> int | None:
        asked = self._entry.port
        if isinstance(asked, int):  # whether or not the Service names it: a pod listens where it likes
            return asked
        numbers = {number for name, number in one.ports if asked in {None, name}}
        return numbers.pop() if len(numbers) == 1 else None


def _asked(port: int | str | None) -> str:
    return "exactly one TCP port; say which by port" if port is None else f"a TCP port {port!r}"


def _named(item: object) -> tuple[str, Slice]:
    members = _mapping(item, "an EndpointSlice")
    family = members.get("addressType")
    endpoints = _endpoints(members) if family in ("IPv4", "IPv6") else iter(())
    return _name(members), Slice(ipv4=family == "IPv4", ports=tuple(_ports(members)), endpoints=tuple(endpoints))


def _endpoints(members: Mapping[str, Any]) -> Iterator[Endpoint]:
    for item in _sequence(members.get("endpoints") or [], "endpoints"):
        endpoint = _mapping(item, "an endpoint")
        addresses = _sequence(endpoint.get("addresses") or [], "addresses")
        if not addresses:
            continue
        try:
            address = str(ip_address(str(addresses[0])))  # all of them are the same pod
        except ValueError as error:
            raise NotSlices("an endpoint has an address that is none") from error
        conditions = _mapping(endpoint.get("conditions") or {}, "conditions")
        # A condition that is not given counts as true for ready and false for terminating. A Service that publishes
        # pods which are not ready has its terminating ones ready too.
        ready = conditions.get("ready") is not False and conditions.get("terminating") is not True
        target = _mapping(endpoint.get("targetRef") or {}, "targetRef")
        yield Endpoint(address, str(target.get("uid") or address), ready)


def _ports(members: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for item in _sequence(members.get("ports") or [], "ports"):
        port = _mapping(item, "a port")
        number = _number(port.get("port"))
        if number and port.get("protocol", "TCP") == "TCP":
            yield str(port.get("name") or ""), number


def _name(members: Mapping[str, Any]) -> str:
    name = _mapping(members.get("metadata"), "metadata").get("name")
    if not isinstance(name, str):
        raise NotSlices("metadata has no name")
    return name


def _version(members: Mapping[str, Any]) -> str:
    version = _mapping(members.get("metadata"), "metadata").get("resourceVersion")
    if not isinstance(version, str):
        raise NotSlices("metadata has no resourceVersion")
    return version


def _number(value: object) -> int:
    """Return a port or a status; 0 where it is none."""
    return value if isinstance(value, int) and value is not True and 0 < value < 2**16 else 0


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise NotSlices(f"{what} is not an object")
    return value


def _sequence(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise NotSlices(f"{what} is not a list")
    return value
