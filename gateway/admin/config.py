"""/admin/config: which config holds, since when, and what came of the last try to read it again."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gateway.admission.settings.members import iso
from gateway.reload import Reload


def show_config(reload: Reload) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers with both. Of the config itself nothing is shown: it holds secrets."""

    async def handle(_request: web.Request) -> web.Response:
        return web.json_response(told_of(reload))

    return handle


def told_of(reload: Reload) -> dict[str, Any]:
    """Return both."""
    active, last = reload.active, reload.last
    return {
        "file": None if active.path is None else str(active.path.absolute()),
        "sha256": active.sha256,
        "loaded_at": iso(int(active.loaded_at)),
        "last_reload": None
        if last is None
        else {
            "at": iso(int(last.at)),
            "because": last.because,
            "result": "failed" if last.problems else "ok",
            "problems": list(last.problems),
        },
    }
