"""What operators ask on their listener: the query's parameters, the body's members, and who may read or change."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from gateway.admission.settings.members import shown
from gateway.calls import strict_json
from gateway.errors import Forbidden, InvalidValue, RequestTooLarge


def check_origin(request: web.Request) -> None:
    """Let only who is on this machine change anything, and no page in a browser of theirs: there is no token here.

    Raises:
        Forbidden: it is somebody else.
    """
    if not _is_loopback(request.remote or "") or "Origin" in request.headers:
        raise Forbidden(
            "Changes are made from this machine only, over loopback: use the `gateway` command, or call from within."
        )


def check_name(request: web.Request) -> None:
    """Let no web page in whose name leads to this machine since it was loaded (DNS rebinding): it could read it all.

    Over loopback only: elsewhere a listener may have any name.

    Raises:
        Forbidden: over loopback, under a name that is not this machine's.
    """
    host = request.headers.get("Host")
    if host is not None and _is_loopback(request.remote or "") and not _is_local(host):
        raise Forbidden("Over loopback this is shown under an address or as localhost: under another name to no one.")


def _is_local(host: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(remote: str) -> bool:
    try:
        address = ip_address(remote)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def once(request: web.Request, known: tuple[str, ...]) -> dict[str, str]:
    """Return the query's parameters.

    Raises:
        InvalidValue: one is unknown, or stands twice.
    """
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            raise InvalidValue(f"There is no parameter {shown(name)}; there are {', '.join(known)}.", param=name[:60])
        if name in given:
            raise InvalidValue(f"{name} stands twice; send it once.", param=name)
        given[name] = value
    return given


async def members_of(request: web.Request) -> Mapping[str, Any]:
    """Return the body's members, but for null ones.

    Raises:
        InvalidValue: it is no JSON object.
        RequestTooLarge: it is far larger than a change.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestTooLarge("The body is far larger than a change.") from error
    document = strict_json.loads(body, max_depth=4).value
    if not isinstance(document, dict):
        raise InvalidValue("The body has to be a JSON object.")
    return {name: value for name, value in document.items() if value is not None}
