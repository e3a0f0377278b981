"""How engines other than vLLM stream, to the byte: field order, nulls, keep-alives, and where each tells its usage.

Each function returns the events of one stream of two tokens (prompt of 7) as its engine sends them when `told`: asked
for the total; `running`: for running totals too. Read in TGI 3.3, SGLang 0.5.23 and Ollama's `middleware/openai.go`;
llama.cpp's as captured.
"""

from collections.abc import Callable
from typing import Any

from tests.transcripts import DONE, dumps, event, usage_of

PING = b":\n\n"
PROMPT, COMPLETION = 7, 2
WORDS = (" Hé", " \U0001f600")

Events = Callable[..., list[bytes]]


def tgi_chat(*, told: bool, running: bool = False, nulls: bool = True) -> list[bytes]:
    """TGI's keep-alives stand between events; `nulls`: its newer versions write `"usage":null` into every event."""
    null: dict[str, Any] = {"usage": None} if nulls else {}

    def one(text: str, finish_reason: str | None) -> bytes:
        delta = {"role": "assistant", "content": text}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(_tgi("chat.completion.chunk") | {"choices": [choice]} | null)

    total = event(_tgi("chat.completion.chunk") | {"choices": [], "usage": usage_of((PROMPT, COMPLETION))})
    return [one(WORDS[0], None), PING, one(WORDS[1], "length"), *([total] if told else []), PING, DONE]


def tgi_completions(*, told: bool, running: bool = False) -> list[bytes]:
    """TGI's completions tell their usage asked or not, each prompt on its last event."""
    return [
        _tgi_text(WORDS[0], 0),
        _tgi_text("", 0, finish_reason="length", usage=(PROMPT, COMPLETION)),
        DONE,
    ]


def tgi_two_prompts(*, told: bool, running: bool = False) -> list[bytes]:
    return [
        _tgi_text(WORDS[0], 0),
        _tgi_text(" x", 1, finish_reason="eos_token", usage=(3, 1)),
        PING,
        _tgi_text("", 0, finish_reason="length", usage=(4, 1)),
        DONE,
    ]


def tgi_chat_without_spaces(*, told: bool, running: bool = False) -> list[bytes]:
    """TGI before axum 0.7 wrote no space behind `data:`."""
    return [one.replace(b"data: ", b"data:", 1) for one in tgi_chat(told=told, nulls=False)]


def tgi_completions_without_spaces(*, told: bool, running: bool = False) -> list[bytes]:
    return [one.replace(b"data: ", b"data:", 1) for one in tgi_completions(told=told)]


def sglang_chat(*, told: bool, running: bool = False) -> list[bytes]:
    """SGLang writes roles, text and finish reasons by one writer, which leaves null out."""
    return [
        _sglang_fast({"role": "assistant", "content": ""}),
        _sglang_fast({"content": WORDS[0]}, usage=1 if running else None),
        _sglang_fast({"content": WORDS[1]}, usage=2 if running else None),
        _sglang_fast({}, finish_reason="stop"),
        *_sglang_total(told),
        DONE,
    ]


def sglang_tools(*, told: bool, running: bool = False) -> list[bytes]:
    """With tools, text and calls alike are written by another writer, which writes null."""
    called = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        _sglang_fast({"role": "assistant", "content": ""}),
        _sglang_full({"content": WORDS[0]}, usage=1 if running else None),
        _sglang_full({"tool_calls": [called]}, usage=2 if running else None),
        _sglang_fast({}, finish_reason="tool_calls"),
        *_sglang_total(told),
        DONE,
    ]


def sglang_extension(*, told: bool, running: bool = False) -> list[bytes]:
    """A client that asks for it gets an event without choices that is not the usage."""
    *events, done = sglang_chat(told=False, running=running)
    extension = {"cached_tokens_details": {"device": 3, "host": 0}}
    return [
        *events,
        event(_sglang("chat.completion.chunk") | {"choices": [], "usage": None, "sglext": extension}),
        *_sglang_total(told),
        done,
    ]


def sglang_completions(*, told: bool, running: bool = False) -> list[bytes]:
    def one(text: str, generated: int, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
        usage = _sglang_usage(generated) if running else None
        return event(_sglang("text_completion") | {"choices": [choice], "usage": usage})

    return [one(WORDS[0], 1), one(WORDS[1], 2, "length"), *_sglang_total(told, kind="text_completion"), DONE]


def ollama_chat(*, told: bool, running: bool = False) -> list[bytes]:
    def one(text: str, finish_reason: str | None) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text}
        return _ollama("chat.completion.chunk") | {
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
        }

    last = one("", "stop")
    total = last | {"choices": [], "usage": usage_of((PROMPT, COMPLETION))}
    return [*[event(one(text, None)) for text in WORDS], event(last), *([event(total)] if told else []), DONE]


def ollama_completions(*, told: bool, running: bool = False) -> list[bytes]:
    """Asked for usage, Ollama's completions have zeros in every event and the real figures in one more."""
    zeros: dict[str, Any] = {"usage": usage_of((0, 0))} if told else {}

    def one(text: str, finish_reason: str | None) -> dict[str, Any]:
        return _ollama("text_completion") | {
            "choices": [{"text": text, "index": 0, "finish_reason": finish_reason}],
            **zeros,
        }

    last = one("", "stop")
    total = last | {"choices": [], "usage": usage_of((PROMPT, COMPLETION))}
    return [*[event(one(text, None)) for text in WORDS], event(last), *([event(total)] if told else []), DONE]


def ollama_error() -> list[bytes]:
    """A failure becomes an event of nothing but empty values, and no `[DONE]` follows."""
    empty = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": empty, "finish_reason": None}
    return [*ollama_chat(told=True)[:2], event(_ollama("chat.completion.chunk") | {"model": "", "choices": [choice]})]


def llamacpp_chat(*, told: bool, running: bool = False) -> list[bytes]:
    """llama.cpp pings while it is idle; `timings` stand in the last event it sends for a choice."""
    timings = {"timings": {"cache_n": 0, "prompt_ms": 14.09, "predicted_ms": 31.84}}
    finish = {"finish_reason": "length", "index": 0, "delta": {}}
    texts = [{"finish_reason": None, "index": 0, "delta": {"content": text}} for text in WORDS]
    if told:
        usage = {"usage": usage_of((PROMPT, COMPLETION)) | {"prompt_tokens_details": {"cached_tokens": 3}}}
        last = [_llamacpp([finish]), _llamacpp([], usage | timings)]
    else:
        last = [_llamacpp([finish], timings)]
    return [PING, _llamacpp([texts[0]]), PING, _llamacpp([texts[1]]), PING, *last, DONE]


def llamacpp_error() -> list[bytes]:
    """llama.cpp ends a stream with its error, without `[DONE]`."""
    error = {"code": 500, "message": "the slot was lost", "type": "server_error"}
    return [*llamacpp_chat(told=True)[:4], event({"error": error})]


def sglang_error() -> list[bytes]:
    """SGLang's error in a stream is written by Python's json module, with spaces."""
    error = b'{"error": {"object": "error", "message": "Aborted", "type": "SERVICE", "param": null, "code": 503}}'
    return [*sglang_chat(told=True)[:2], b"data: " + error + b"\n\n", DONE]


def tgi_error() -> list[bytes]:
    return [
        tgi_chat(told=True)[0],
        event({"error": {"message": "Request failed during generation", "http_status_code": 424}}),
        DONE,
    ]


def azure_chat(*, told: bool, running: bool = False) -> list[bytes]:
    """Azure's first event has no choices but what its filter says, and like all others a null where usage is asked."""
    null: dict[str, Any] = {"usage": None} if told else {}

    def one(**rest: Any) -> bytes:
        return event({"choices": [], "created": 1, "id": "c", "model": "m", "object": "chat.completion.chunk"} | rest)

    def said(text: str, finish_reason: str | None) -> bytes:
        return one(choices=[{"delta": {"content": text}, "finish_reason": finish_reason, "index": 0}], **null)

    return [
        one(prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}], **null),
        *[said(text, None) for text in WORDS],
        said("", "stop"),
        *([one(usage=usage_of((PROMPT, COMPLETION)))] if told else []),
        DONE,
    ]


def spaced_chat(*, told: bool, running: bool = False) -> list[bytes]:
    """A server in Python that writes by its json module: a space behind each colon and comma."""
    return [one.replace(b'":', b'": ').replace(b',"', b', "') for one in azure_chat(told=told)]


def _tgi(kind: str) -> dict[str, Any]:
    return {"object": kind, "id": "", "created": 1, "model": "tiny", "system_fingerprint": "3.3.6-native"}


def _tgi_text(text: str, index: int, *, finish_reason: str = "", usage: tuple[int, int] | None = None) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    told: dict[str, Any] = {"usage": usage_of(usage)} if usage else {}
    return event(_tgi("text_completion") | {"choices": [choice]} | told)


def _sglang(kind: str) -> dict[str, Any]:
    return {"id": "6c1f", "object": kind, "created": 1, "model": "tiny"}


def _sglang_fast(delta: dict[str, Any], *, finish_reason: str | None = None, usage: int | None = None) -> bytes:
    ended = {"logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
    choice = {"index": 0, "delta": {"reasoning_content": None} | delta} | ended
    told = {} if usage is None else {"usage": _sglang_usage(usage)}
    return event(_sglang("chat.completion.chunk") | {"choices": [choice]} | told)


def _sglang_full(delta: dict[str, Any], *, usage: int | None) -> bytes:
    full = {"role": None, "content": None, "reasoning_content": None} | delta
    choice = {"index": 0, "delta": full, "logprobs": None, "finish_reason": None, "matched_stop": None}
    told = None if usage is None else _sglang_usage(usage)
    return event(_sglang("chat.completion.chunk") | {"choices": [choice], "usage": told})


def _sglang_usage(generated: int) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "reasoning_tokens": 1}
    return usage_of((PROMPT, generated)) | details | {"completion_tokens_details": {"reasoning_tokens": 1}}


def _sglang_total(told: bool, *, kind: str = "chat.completion.chunk") -> list[bytes]:
    return [event(_sglang(kind) | {"choices": [], "usage": _sglang_usage(COMPLETION)})] if told else []


def _ollama(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-7", "object": kind, "created": 1, "model": "tiny", "system_fingerprint": "fp_ollama"}


def _llamacpp(choices: list[dict[str, Any]], rest: dict[str, Any] | None = None) -> bytes:
    named = {"created": 1, "id": "chatcmpl-x", "model": "tiny", "system_fingerprint": "b0"}
    chunk = {"choices": choices} | named | {"object": "chat.completion.chunk"} | (rest or {})
    return b"data: " + dumps(chunk) + b"\n\n"
