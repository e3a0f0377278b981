"""/admin/usage: what every tenant used, or one, from the ledger."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.admission.ledger.query import of_operator
from gateway.admission.ledger.reader import LedgerReader
from gateway.errors import CONTENT_TYPE


def show_usage(reader: LedgerReader) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers with the rows of the days and groups that are asked for."""

    async def handle(request: web.Request) -> web.Response:
        query = of_operator(request.query.items(), today=reader.today())
        return web.Response(body=await reader.page(query), headers={"Content-Type": CONTENT_TYPE})

    return handle
