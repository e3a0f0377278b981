"""What the pages of settings that a store keeps have in common: how entries are read and changed, and shown."""

from collections.abc import Awaitable, Collection, Iterable
from typing import Any, TypeVar

from aiohttp import web

from gateway.admission.settings.watcher import Watcher
from gateway.admission.store import StoreUnavailable
from gateway.errors import LimitsUnavailable

_Entry = TypeVar("_Entry")


async def kept_or_known(kept: Awaitable[list[_Entry]], known: Collection[_Entry]) -> tuple[list[_Entry], bool]:
    """Return what is kept and True; while the store does not answer, what this process knows, and False."""
    try:
        return await kept, True
    except StoreUnavailable:
        return list(known), False


async def changed(change: Awaitable[list[_Entry]], watcher: Watcher) -> list[_Entry]:
    """Return what is kept after a change, which holds here from then on.

    Raises:
        LimitsUnavailable: the store does not answer.
    """
    try:
        entries = await change
        await watcher.refresh()
    except StoreUnavailable as failure:
        raise LimitsUnavailable("The limit store does not answer; look whether this was changed.") from failure
    return entries


def page(rows: Iterable[dict[str, Any]], *, current: bool, **more: Any) -> web.Response:
    """Return the answer that shows `rows`, and whether they are what the store keeps now."""
    return web.json_response({"object": "list", "current": current, **more, "data": list(rows)})
