"""Body bytes -> Call, or the refusal that says which field is wrong.

`parse` never changes the body and fills in no default: the Call holds the client's own bytes.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway import config
from gateway.calls import rules, strict_json
from gateway.calls.call import Call, Endpoint
from gateway.calls.content import TEXT, described, read_content
from gateway.calls.estimate import OF_NO_MODEL, UNKNOWN, Estimate
from gateway.calls.explain import excerpt, explain
from gateway.calls.prefix import prefixes_of
from gateway.errors import InvalidValue, UnsupportedValue
from gateway.schemas.chat import ChatCompletionRequestBody
from gateway.schemas.completions import CompletionRequestBody

# The validators that the adapters wrap: an adapter's own method costs as much again as checking a small body.
_valid_chat = TypeAdapter(ChatCompletionRequestBody).validator.validate_python
_valid_completion = TypeAdapter(CompletionRequestBody).validator.validate_python


def parse(
    endpoint: Endpoint,
    body: bytes,
    *,
    requests: config.Requests,
    estimates: Mapping[str, Estimate] = UNKNOWN,
    by_prefix: Container[str] = (),
    tenant: str = "",
) -> Call:
    """Return the call that `body` is; raise `InvalidJson`, `InvalidValue`, `MissingField` or `UnsupportedValue`.

    `estimates` are those of the models, by every name that clients may use; `by_prefix` has the names of those whose
    calls are to be told apart by how they begin, each tenant's by themselves.
    """
    document, containers = strict_json.loads(body, max_depth=requests.max_depth)
    if not isinstance(document, dict):
        raise InvalidValue(f"The body has to be a JSON object, not {excerpt(document)}.")
    if not document.keys().isdisjoint(requests.blocked_fields):
        _check_blocked(document, requests.blocked_fields)
    if endpoint == "chat":
        call = _chat(body, document, containers, estimates=estimates)
    else:
        call = _completion(body, document, estimates)
    return call._replace(prefixes=prefixes_of(document, tenant=tenant)) if call.model in by_prefix else call


def _check_blocked(document: dict[str, Any], blocked: Sequence[str]) -> None:
    for name in blocked:
        if document.get(name) is not None:
            raise UnsupportedValue(f"{name} is not served here; leave it out.", param=name)


def _chat(body: bytes, document: dict[str, Any], containers: int, *, estimates: Mapping[str, Estimate]) -> Call:
    request = _hold_chat(document)
    tool_choice = rules.check_chat(request)
    messages = document["messages"]
    # Where there is nothing but the body, its list of messages and those, no message has parts.
    content = TEXT if containers == len(messages) + 2 else read_content(messages)
    options = request.get("stream_options")
    choices = request.get("n") or 1
    model = request["model"]
    estimate = estimates.get(model, OF_NO_MODEL)
    text_bytes = len(body) - content.media_size
    return Call(
        endpoint="chat",
        model=model,
        body=body,
        stream=request.get("stream") is True,
        include_usage=options is not None and options["include_usage"],
        continuous_usage=options is not None and rules.continuous_usage(document["stream_options"]),
        input_tokens=estimate.text(text_bytes) + (estimate.media(content.media) if content.media else 0),
        # vLLM lets max_completion_tokens win, older engines know only max_tokens: the larger is never too little.
        output_tokens=max(request.get("max_tokens") or 0, request.get("max_completion_tokens") or 0) or None,
        choices=choices,
        generations=choices,
        text_bytes=0 if content.media else text_bytes,
        tool_choice=tool_choice,
        content_parts=content.parts,
    )


def _completion(body: bytes, document: dict[str, Any], estimates: Mapping[str, Estimate]) -> Call:
    try:
        request: CompletionRequestBody = _valid_completion(document)
    except ValidationError as error:
        raise explain(error) from error
    rules.check_completion(request)
    options = request.get("stream_options")
    prompts, ids = _measure(request["prompt"])
    model = request["model"]
    n = request.get("n") or 1
    return Call(
        endpoint="completions",
        model=model,
        body=body,
        stream=request.get("stream") is True,
        include_usage=options is not None and options["include_usage"],
        continuous_usage=options is not None and rules.continuous_usage(document["stream_options"]),
        input_tokens=estimates.get(model, OF_NO_MODEL).text(len(body)) if ids is None else ids,
        output_tokens=request.get("max_tokens"),
        choices=prompts * n,
        generations=prompts * max(n, request.get("best_of") or 1),
        prompts=prompts,
        text_bytes=len(body) if ids is None else 0,
    )


def _hold_chat(document: dict[str, Any]) -> ChatCompletionRequestBody:
    """Return what the schema knows of `document`; parts that it does not describe are for the model to allow."""
    try:
        request: ChatCompletionRequestBody = _valid_chat(document)
    except ValidationError as error:
        stood_in = described(document)
        if stood_in == document:
            raise explain(error) from error
        return _hold_chat(stood_in)
    return request


def _measure(prompt: str | Sequence[object]) -> tuple[int, int | None]:
    """Return how many prompts there are, and how many tokens they have where they are given as ids."""
    if isinstance(prompt, str):
        return 1, None
    if isinstance(prompt[0], int):
        return 1, len(prompt)
    if isinstance(prompt[0], str):
        return len(prompt), None
    return len(prompt), sum(len(ids) for ids in prompt if isinstance(ids, list))
