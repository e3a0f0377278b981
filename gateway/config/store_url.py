"""`limits.store` as a URL: text in, what it names out. One server, a master that sentinels know, or a cluster. No I/O.

    redis://[user:password@]host[:6379][/db][?option=…]
    redis+sentinel://[user:password@]host[:26379],host…/MASTER[/db][?sentinel_username=…&sentinel_password=…&option=…]
    redis+cluster://[user:password@]host[:6379],host…[?option=…]

With `rediss` instead of `redis` all connections are TLS, those to sentinels too. User and password are the servers'.
Options are redis-py's for one server.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

Topology = Literal["server", "sentinel", "cluster"]
Address = tuple[str, int]

_FORM = re.compile(
    r"(?P<scheme>rediss?)(?:\+(?P<topology>sentinel|cluster))?://"
    r"(?:(?P<who>[^@/?\s]*)@)?(?P<places>[^@/?\s]*)(?P<path>/[^?\s]*)?(?:\?(?P<query>\S*))?"
)
_PLACE = re.compile(r"(?:\[(?P<literal>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:]+))(?::(?P<port>\d{1,5}))?")
_PORTS = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_MAX_PORT = 65535
_OF_SENTINELS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """What a URL names. `places` are the sentinels, or nodes of the cluster; `master` is what the sentinels call it."""

    topology: Topology
    text: str
    scheme: str
    who: str
    places: tuple[Address, ...]
    master: str
    database: int
    options: tuple[tuple[str, str], ...]
    sentinels_who: tuple[str, str]

    def server(self, place: Address) -> str:
        """Return the URL of one server, with everything that is said of all."""
        who = f"{self.who}@" if self.who else ""
        return f"{self.scheme}://{who}{_written(place)}/{self.database}{_query(self.options)}"

    def sentinel(self, place: Address) -> str:
        """Return the URL of one sentinel."""
        user, password = self.sentinels_who
        who = f"{quote(user, '')}:{quote(password, '')}@" if password else ""
        return f"{self.scheme}://{who}{_written(place)}{_query(self.options)}"


def parse(text: str) -> StoreUrl:
    """Return what `text` names.

    Raises:
        ValueError: it is no such URL; says what was expected, and nothing of a password.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError("expected memory, or a URL such as redis://, redis+sentinel:// or redis+cluster://host:port")
    topology: Topology = form["topology"] or "server"  # type: ignore[assignment] # one of the pattern's words
    if topology == "server":
        _check_one(form["places"])
        return StoreUrl(topology, text, form["scheme"], "", (), "", 0, (), ("", ""))
    options = parse_qsl(form["query"] or "", keep_blank_values=True)
    named = dict(options)
    if topology == "cluster" and (wrong := named.keys() & set(_OF_SENTINELS)):
        raise ValueError(f"{min(wrong)}: only with redis+sentinel://")
    if named.get(_OF_SENTINELS[0]) and not named.get(_OF_SENTINELS[1]):
        raise ValueError("sentinel_username: only with sentinel_password")
    master, database = _of_sentinels(form["path"] or "") if topology == "sentinel" else _of_cluster(form["path"] or "")
    return StoreUrl(
        topology,
        text,
        form["scheme"],
        form["who"] or "",
        tuple([_place(place, _PORTS[topology]) for place in form["places"].split(",")]),
        master,
        database,
        tuple([(name, value) for name, value in options if name not in _OF_SENTINELS]),
        (named.get(_OF_SENTINELS[0], ""), named.get(_OF_SENTINELS[1], "")),
    )


def _check_one(place: str) -> None:
    """See that there is one host at most; redis-py would take several for the name of one, and look for that."""
    if "," in place:
        raise ValueError("expected one host; of several, redis+sentinel:// or redis+cluster:// says what they are")
    if place:
        _place(f"localhost{place}" if place.startswith(":") else place, _PORTS["server"])


def _place(text: str, port: int) -> Address:
    place = _PLACE.fullmatch(text)
    if place is None or not 0 < int(place["port"] or port) <= _MAX_PORT:
        raise ValueError(
            "expected host:port after the scheme, or after the @ that ends user and password; commas between several"
        )
    return place["literal"] or place["host"], int(place["port"] or port)


def _of_sentinels(path: str) -> tuple[str, int]:
    _, master, *rest = [*path.split("/"), ""][: max(path.count("/") + 1, 2)]
    database = rest[0] if rest else ""
    if not master or len(rest) > 1 or not (database or "0").isdecimal():
        raise ValueError("expected redis+sentinel://host:port,host:port/MASTER or …/MASTER/database")
    if not rest and master.isdecimal():
        raise ValueError(
            f"/{master} is a database: expected …/MASTER/{master}, or …/{master}/0 if the master is called so"
        )
    return unquote(master), int(database or 0)


def _of_cluster(path: str) -> tuple[str, int]:
    if path not in {"", "/", "/0"}:
        raise ValueError("expected redis+cluster://host:port,host:port and no path: a cluster has one database")
    return "", 0


def _written(place: Address) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _query(options: tuple[tuple[str, str], ...]) -> str:
    return f"?{urlencode(options)}" if options else ""
