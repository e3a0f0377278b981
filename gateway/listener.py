"""The tenant listener: which path and method means what. Paths are matched exactly, as they stand in the request line.

Anything spelled otherwise (`//v1`, `%2e%2e`, an absolute-form target) is another path, and is not found.
"""

from collections.abc import Awaitable
from functools import partial
from importlib import resources
from urllib.parse import unquote

from aiohttp import web

from gateway.errors import MethodNotAllowed, NotFound
from gateway.identity.header import MAX_FIELD_BYTES
from gateway.models import ModelPages
from gateway.pipeline import Path, Pipeline, identifying
from gateway.relay.client import Answer, ClientConnection
from gateway.telemetry.record import Endpoint
from gateway.trail import Trail

_MODEL = "/v1/models/"
_ANY = "*"
# How long a refused client may go on sending its body before its connection is closed.
_LINGER_S = 5.0
# Longer than proxies in front keep a connection: we must not be the one that closes while a request is on its way.
_KEEP_ALIVE_S = 3630.0


class Listener(web.Server):
    """aiohttp's server with our connections and our dispatch; `web.ServerRunner` runs it."""

    def __init__(self, pipeline: Pipeline, pages: ModelPages) -> None:
        super().__init__(
            self._dispatch,
            handler_cancellation=True,  # a client that leaves ends its call at once, and with it the engine's work
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_KEEP_ALIVE_S,
            lingering_time=_LINGER_S,
            max_field_size=MAX_FIELD_BYTES,
        )
        self._pipeline = pipeline
        self._pages = pages
        self._openapi = (resources.files("gateway.schemas") / "openapi.json").read_bytes()
        self._routes: dict[str, tuple[str, Endpoint, Path]] = {
            "/v1/chat/completions": ("POST", "chat", pipeline.infer),
            "/v1/completions": ("POST", "completions", pipeline.infer),
            "/v1/models": ("GET", "models", pages.all),
            "/openapi.json": ("GET", "other", self._show_openapi),
        }

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return ClientConnection(self, self._pipeline.malformed, loop=self._loop, **self._kwargs)

    def _dispatch(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        path = request.raw_path.partition("?")[0]
        allowed, endpoint, handle = self._routes.get(path) or self._unlisted(path)
        if allowed not in (request.method, _ANY):
            handle = partial(_refuse_method, allowed=allowed)
        return self._pipeline.serve(request, endpoint, handle)

    def _unlisted(self, path: str) -> tuple[str, Endpoint, Path]:
        if path.startswith(_MODEL):
            # Model ids hold `/`; openai-python sends it as %2F.
            return "GET", "models", partial(self._pages.one, name=unquote(path.removeprefix(_MODEL)))
        return _ANY, "other", _refuse_path

    async def _show_openapi(self, _request: web.BaseRequest, answer: Answer, trail: Trail) -> None:
        answer.whole(200, f"Content-Type: application/json\r\n{identifying(trail)}", self._openapi)


async def _refuse_path(_request: web.BaseRequest, _answer: Answer, _trail: Trail) -> None:
    raise NotFound(
        "No such path. This gateway serves POST /v1/chat/completions, POST /v1/completions and GET /v1/models."
    )


async def _refuse_method(_request: web.BaseRequest, _answer: Answer, _trail: Trail, *, allowed: str) -> None:
    raise MethodNotAllowed(f"This path takes only {allowed}.", headers={"Allow": allowed})
