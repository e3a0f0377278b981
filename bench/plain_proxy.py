"""The reference: an idiomatic aiohttp proxy that passes on what it gets and does nothing else. Runs on uvloop."""

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

_ENGINE = web.AppKey("engine", str)
_SESSION = web.AppKey("session", aiohttp.ClientSession)
# Of one connection only, or written anew by aiohttp for the next one.
_NOT_PASSED_ON = ("Host", "Connection", "Keep-Alive", "Transfer-Encoding")


async def _proxy(request: web.Request) -> web.StreamResponse:
    session, url = request.app[_SESSION], request.app[_ENGINE] + request.path_qs
    body = await request.read()
    async with session.request(request.method, url, headers=_passed_on(request.headers), data=body) as answer:
        response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    kept = headers.copy()
    for name in _NOT_PASSED_ON:
        kept.popall(name, None)
    return kept


async def _session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        app[_SESSION] = session
        yield


def _main(port: int, engine: str) -> None:
    app = web.Application()
    app[_ENGINE] = engine
    app.cleanup_ctx.append(_session)
    app.router.add_route("*", "/{path:.*}", _proxy)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
