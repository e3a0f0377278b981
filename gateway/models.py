"""GET /v1/models and /v1/models/{id}: what the caller may use, in OpenAI's shape."""

import json
from typing import Any

from gateway.client.answer import Answer
from gateway.client.request import Request
from gateway.errors import CONTENT_TYPE
from gateway.identity.principal import Principal
from gateway.pipeline import Pipeline, identifying
from gateway.routing.catalog import Model
from gateway.trail import Trail


class ModelPages:
    """Shows models to authenticated callers. A model that the caller may not use is not there."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def all(self, request: Request, answer: Answer, trail: Trail) -> None:
        """List the models that the caller may use."""
        principal = await self._pipeline.authenticate(request, trail)
        data = [_shape(model, principal) for model in self._pipeline.serving.catalog.permitted(principal)]
        _send(answer, trail, {"object": "list", "data": data})

    async def one(self, request: Request, answer: Answer, trail: Trail, *, name: str) -> None:
        """Show one model, by its name or an alias."""
        principal = await self._pipeline.authenticate(request, trail)
        trail.model = self._pipeline.serving.catalog.resolve(name, principal)
        _send(answer, trail, _shape(trail.model, principal))


def _shape(model: Model, principal: Principal) -> dict[str, Any]:
    entry = model.entry
    shape: dict[str, Any] = {"id": model.name, "object": "model", "created": entry.created, "owned_by": entry.owned_by}
    if entry.max_model_len is not None:
        shape["max_model_len"] = entry.max_model_len
    fallbacks = [name for name in entry.fallbacks if principal.may_use(name)]
    if fallbacks:
        shape["fallbacks"] = fallbacks
    if entry.pricing is not None:
        shape["pricing"] = entry.pricing.model_dump()
    return shape


def _send(answer: Answer, trail: Trail, page: dict[str, Any]) -> None:
    body = json.dumps(page, separators=(",", ":")).encode()
    answer.whole(200, f"Content-Type: {CONTENT_TYPE}\r\n{identifying(trail)}", body)
