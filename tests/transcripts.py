"""What engines send, as bytes: HTTP framing, SSE events in vLLM's shape, transcripts, captures of real engines."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["chat", "completions"]
Framing = Literal["chunked", "close", "length"]
Usage = tuple[int, int]

CAPTURES = Path(__file__).parent / "conformance" / "captures"
EVENT_STREAM = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"
MODEL = "tiny"
FINGERPRINT = "vllm-0.32.0-e6f0cba7"

_IDS = {"chat": "chatcmpl-94c58c8787a2821e", "completions": "cmpl-810bb0b2086ea348"}


def head(
    status: str = "200 OK",
    *,
    content_type: str = EVENT_STREAM,
    framing: Framing = "chunked",
    length: int = 0,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return a response head. A close-delimited one promises nothing of where the body ends."""
    ends = {"chunked": ("transfer-encoding", "chunked"), "close": ("connection", "close")}
    lines = [("server", "uvicorn"), ("content-type", content_type), *headers]
    lines.append(ends.get(framing, ("content-length", str(length))))
    return "".join([f"HTTP/1.1 {status}\r\n", *(f"{name}: {value}\r\n" for name, value in lines), "\r\n"]).encode()


def http(body: bytes, *, status: str = "200 OK", headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return a whole JSON response."""
    return head(status, content_type="application/json", framing="length", length=len(body), headers=headers) + body


def chunked(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def sse(events: Iterable[bytes], *, framing: Framing = "chunked") -> bytes:
    """Return a whole stream, each event a chunk of its own. A close-delimited one still needs a `close` step."""
    parts = list(events)
    if framing == "chunked":
        return head() + b"".join(map(chunked, parts)) + LAST_CHUNK
    return head(framing=framing, length=sum(map(len, parts))) + b"".join(parts)


def event(chunk: object) -> bytes:
    """Return one event as vLLM writes it."""
    return b"data: " + dumps(chunk) + b"\n\n"


def chat(text: str, *, index: int = 0, finish_reason: str | None = None, **rest: Any) -> bytes:
    """Return the event of one chat token; `rest` (usage, system_fingerprint, …) follows `choices`."""
    ended = {"finish_reason": finish_reason} | ({"stop_reason": None} if finish_reason else {})
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, **ended, "token_ids": None}
    return event(_chunk("chat", [choice]) | rest)


def chat_role(*, index: int = 0, **rest: Any) -> bytes:
    """Return the event that opens a chat choice."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return event(_chunk("chat", [choice]) | rest | {"prompt_token_ids": None, "prompt_text": None})


def completion(text: str, *, index: int = 0, finish_reason: str | None = None, **rest: Any) -> bytes:
    """Return the event of one token of a completion."""
    ended = {"finish_reason": finish_reason, "stop_reason": None}
    choice = {"index": index, "text": text, "logprobs": None, **ended, "prompt_token_ids": None, "token_ids": None}
    return event(_chunk("completions", [choice]) | rest)


def usage_event(prompt: int, completion: int, *, kind: Kind = "chat", **rest: Any) -> bytes:
    """Return vLLM's event with the usage of the whole call."""
    return event(_chunk(kind, []) | {"usage": usage_of((prompt, completion)), "system_fingerprint": FINGERPRINT} | rest)


def error_event(message: str = "EngineCore encountered an issue.", *, code: int = 500) -> bytes:
    """Return vLLM's in-stream error."""
    body = {"message": message, "type": "InternalServerError", "param": None, "code": code}
    return event({"error": body})


def transcript(
    *texts: str, kind: Kind = "chat", finish_reason: str = "stop", usage: Usage | None = None, continuous: bool = False
) -> list[bytes]:
    """Return the events of a stream with one choice: a token a text, the last with the finish reason, [DONE].

    With `usage` (prompt, completion) as vLLM sends it under include_usage; `continuous` adds running totals.
    """
    token = chat if kind == "chat" else completion
    prompt = usage[0] if usage else 0

    def rest(generated: int) -> dict[str, Any]:
        return {"usage": usage_of((prompt, generated))} if continuous else {}

    events = [chat_role(**rest(0))] if kind == "chat" else []
    for generated, text in enumerate(texts, 1):
        last = generated == len(texts)
        stamp: dict[str, Any] = {"system_fingerprint": FINGERPRINT} if last and not usage else {}
        events.append(token(text, finish_reason=finish_reason if last else None, **rest(generated), **stamp))
    return [*events, *([usage_event(*usage, kind=kind)] if usage else []), DONE]


def answer(kind: Kind, text: str, *, usage: Usage | None = None, finish_reason: str = "stop") -> bytes:
    """Return the body of an answer that is no stream."""
    content = {"message": {"role": "assistant", "content": text}} if kind == "chat" else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    named = _chunk(kind, [choice]) | {"object": "chat.completion" if kind == "chat" else "text_completion"}
    return dumps(named | {"system_fingerprint": FINGERPRINT} | ({"usage": usage_of(usage)} if usage else {}))


def usage_of(counts: Usage) -> dict[str, int]:
    """Return a usage object."""
    prompt, completion = counts
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def dumps(value: object) -> bytes:
    """Return compact JSON in raw UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def serve_capture(name: str) -> bytes:
    """Return the response in `captures/NAME.hdr` and `.bin` as its engine framed it, an event a chunk."""
    captured, body = capture(name)
    if b"transfer-encoding: chunked" not in captured.lower():
        return captured + body
    return captured + b"".join(chunked(part + b"\n\n") for part in body.split(b"\n\n") if part) + LAST_CHUNK


def capture(name: str) -> tuple[bytes, bytes]:
    """Return head and body of a captured response, such as `vllm/chat_stream_usage`."""
    return (CAPTURES / f"{name}.hdr").read_bytes(), (CAPTURES / f"{name}.bin").read_bytes()


def _chunk(kind: Kind, choices: list[Any]) -> dict[str, Any]:
    named = "chat.completion.chunk" if kind == "chat" else "text_completion"
    return {"id": _IDS[kind], "object": named, "created": 1795970486, "model": MODEL, "choices": choices}
