"""vLLM's JSON and SSE, key for key in its order: chunks, whole answers, the model list, errors.

Serialised by pydantic's own writer, as vLLM does: compact, raw UTF-8, the same escapes.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from gateway.engine.generation import Choice, Generation
from gateway.engine.job import Job
from gateway.engine.refusals import EngineRefusal

# The version whose streams this engine was compared with.
VERSION = "0.32.0"
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def fingerprint(model: str) -> str:
    """Return the `system_fingerprint` of an engine that serves `model`."""
    return f"vllm-{VERSION}-{hashlib.sha256(model.encode(errors='replace')).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The identity of one answer, and its JSON in either form. `request_id` is the caller's, else a fresh one."""

    job: Job
    request_id: str
    created: int
    model: str

    def openings(self, generation: Generation) -> list[bytes]:
        """Return the events before the first token: a chat says for each choice whose turn it is."""
        if self.job.endpoint != "chat":
            return []
        delta = {"role": "assistant", "content": ""}
        extra = {"prompt_token_ids": None, "prompt_text": None}
        events = []
        for choice in generation.choices:
            body = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
            events.append(_event(self._chunk([body]) | self._running_usage(choice) | extra))
        return events

    def token(self, choice: Choice, text: str) -> bytes:
        """Return the event of one token; the last one of a choice carries its finish reason."""
        body = _chat_delta(choice, text) if self.job.endpoint == "chat" else _completions_delta(choice, text)
        chunk = self._chunk([body]) | self._running_usage(choice)
        if choice.finish_reason is not None and not self.job.include_usage:
            chunk["system_fingerprint"] = fingerprint(self.model)
        return _event(chunk)

    def endings(self, generation: Generation) -> list[bytes]:
        """Return the events behind the last token: the whole call's usage where it was asked for, and [DONE]."""
        if not self.job.include_usage:
            return [DONE]
        total = {"usage": _usage(generation.prompt_tokens, generation.generated)}
        return [_event(self._chunk([]) | total | {"system_fingerprint": fingerprint(self.model)}), DONE]

    def whole(self, generation: Generation, texts: list[str]) -> bytes:
        """Return the answer of a call that did not ask for a stream."""
        chat = self.job.endpoint == "chat"
        describe = _message if chat else _text
        choices = [describe(choice, text) for choice, text in zip(generation.choices, texts, strict=True)]
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return to_json(
            self._head("chat.completion" if chat else "text_completion")
            | {"choices": choices, "service_tier": None, "system_fingerprint": fingerprint(self.model)}
            | {"usage": _usage(generation.prompt_tokens, generation.generated) | details}
            | (prompt if chat else {})
            | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        )

    def _head(self, kind: str) -> Json:
        prefix = "chatcmpl" if self.job.endpoint == "chat" else "cmpl"
        return {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.job.endpoint == "chat" else "text_completion"
        return self._head(kind) | {"choices": choices}

    def _running_usage(self, choice: Choice) -> Json:
        """Return the `usage` of a chunk under continuous_usage_stats: of this choice alone, so far."""
        if not self.job.continuous_usage:
            return {}
        details = {"completion_tokens_details": None} if self.job.endpoint == "chat" else {}
        return {"usage": _usage(choice.prompt_tokens, choice.generated) | details}


def error(refusal: EngineRefusal) -> bytes:
    """Return vLLM's error object; its `code` is the status."""
    body = {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.status}
    return to_json({"error": body})


def version() -> bytes:
    """Return the answer of `GET /version`."""
    return to_json({"version": VERSION})


def models(model: str, *, created: int, max_model_len: int) -> bytes:
    """Return the answer of `GET /v1/models`."""
    permission = {"id": f"modelperm-{fingerprint(model)[-8:]}", "object": "model_permission", "created": created}
    permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
    permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
    permission |= {"organization": "*", "group": None, "is_blocking": False}
    card = {"id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": None}
    return to_json({"object": "list", "data": [card | {"max_model_len": max_model_len, "permission": [permission]}]})


def _event(chunk: Json) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def _chat_delta(choice: Choice, text: str) -> Json:
    ended = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    reason = {"finish_reason": None} if choice.finish_reason is None else ended
    return {"index": choice.index, "delta": {"content": text}, "logprobs": None} | reason | {"token_ids": None}


def _completions_delta(choice: Choice, text: str) -> Json:
    reason = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    head = {"index": choice.index, "text": text, "logprobs": None}
    return head | reason | {"prompt_token_ids": None, "token_ids": None}


def _message(choice: Choice, text: str) -> Json:
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
    message |= {"audio": None, "function_call": None, "reasoning": None}
    reason = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    head = {"index": choice.index, "message": message, "logprobs": None}
    return head | reason | {"token_ids": None, "routed_experts": None}


def _text(choice: Choice, text: str) -> Json:
    reason = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    prompt = {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
    return {"index": choice.index, "text": text, "logprobs": None} | reason | prompt


def _usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
