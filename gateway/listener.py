"""The tenant listener: which path and method means what. Paths are matched exactly, as they stand in the request line.

Anything spelled otherwise (`//v1`, `%2e%2e`, an absolute-form target) is another path, and is not found.
"""

from collections.abc import Awaitable
from functools import partial
from importlib import resources
from urllib.parse import unquote

from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.errors import MethodNotAllowed, NotFound
from gateway.models import ModelPages
from gateway.pipeline import Path, Pipeline, identifying
from gateway.telemetry.record import Endpoint
from gateway.trail import Trail
from gateway.usage import UsagePage

_MODEL = b"/v1/models/"
_ANY = b"*"


class Listener:
    """Answers requests: `Clients` calls it with each."""

    def __init__(self, pipeline: Pipeline, pages: ModelPages, *, usage: UsagePage) -> None:
        self._pipeline = pipeline
        self._pages = pages
        self._openapi = (resources.files("gateway.schemas") / "openapi.json").read_bytes()
        self._routes: dict[bytes, tuple[bytes, Endpoint, Path]] = {
            b"/v1/chat/completions": (b"POST", "chat", pipeline.infer),
            b"/v1/completions": (b"POST", "completions", pipeline.infer),
            b"/v1/models": (b"GET", "models", pages.all),
            b"/v1/usage": (b"GET", "other", usage.show),
            b"/openapi.json": (b"GET", "other", self._show_openapi),
        }

    def __call__(self, request: Request) -> Awaitable[Answer]:
        """Answer one request."""
        path = request.target.partition(b"?")[0]
        allowed, endpoint, handle = self._routes.get(path) or self._unlisted(path)
        if allowed not in (request.method, _ANY):
            handle = partial(_refuse_method, allowed=allowed.decode())
        return self._pipeline.serve(request, endpoint, handle)

    def _unlisted(self, path: bytes) -> tuple[bytes, Endpoint, Path]:
        if path.startswith(_MODEL):
            # Model ids hold `/`; openai-python sends it as %2F.
            return b"GET", "models", partial(self._pages.one, name=unquote(path.removeprefix(_MODEL)))
        return _ANY, "other", _refuse_path

    async def _show_openapi(self, _request: Request, answer: Answer, trail: Trail) -> None:
        answer.whole(200, f"Content-Type: application/json\r\n{identifying(trail)}", self._openapi)


async def _refuse_path(_request: Request, _answer: Answer, _trail: Trail) -> None:
    raise NotFound(
        "No such path. This gateway serves POST /v1/chat/completions, POST /v1/completions, GET /v1/models and "
        "GET /v1/usage."
    )


async def _refuse_method(_request: Request, _answer: Answer, _trail: Trail, *, allowed: str) -> None:
    raise MethodNotAllowed(f"This path takes only {allowed}.", headers={"Allow": allowed})
