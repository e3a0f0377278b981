"""Pairs of streams, as an engine sends them unasked and asked: from the second, the client must get the first."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.call import Call, Endpoint
from gateway.calls.usage import Usage
from gateway.config import PoolEntry
from gateway.relay.events import MAX_EVENT_BYTES
from gateway.relay.stream import Stream
from gateway.relay.unasked import Asking, Unasked, asking
from gateway.routing.replica import Replica
from tests import dialects
from tests.transcripts import (
    DONE,
    FINGERPRINT,
    Kind,
    capture,
    chat,
    chat_role,
    error_event,
    event,
    transcript,
    usage_event,
    usage_of,
)

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=5)
awkward = [',"usage":{"x":1}', '"finish_reason":"stop"', '"system_fingerprint":"no"', '"choices":[]', "}\n\n", "{[\\"]


def call_of(*, endpoint: Endpoint = "chat", include_usage: bool = False, running: bool = False, n: int = 1) -> Call:
    return Call(
        endpoint=endpoint,
        model="m",
        body=b"{}",
        stream=True,
        include_usage=include_usage,
        continuous_usage=running,
        input_tokens=1,
        output_tokens=None,
        choices=n,
    )


def replica_of(engine: str) -> Replica:
    pool = PoolEntry.model_validate({"engine": engine, "replicas": ["http://10.0.0.1"]})
    return Replica(pool.replicas[0], pool)


def shown(*pieces: bytes, engine: str, call: Call, replica: Replica | None = None) -> tuple[bytes, Usage | None]:
    """Return what the client gets of a stream that was asked for usage on its behalf, and the usage it told."""
    replica = replica or replica_of(engine)
    asked = asking(call, engine, replica)
    assert asked is not None
    reading = Stream(call, engine=engine, unasked=Unasked(asked, call, engine, replica))
    client = b"".join([reading.feed(piece) for piece in pieces])
    reading.ended = True
    client += reading.end()
    assert reading.at_boundary
    outcome = reading.outcome(client_gone=False)
    return client, None if outcome.usage_missing else outcome.usage


def in_pieces(stream: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=8))})
    return [stream[a:b] for a, b in pairwise(cuts)]


@given(texts | st.just(awkward), st.sampled_from(["chat", "completions"]), st.data())
def test_vllm(words: list[str], kind: Kind, data: st.DataObject) -> None:
    direct = b"".join(transcript(*words, kind=kind))
    asked = b"".join(transcript(*words, kind=kind, usage=(7, len(words)), continuous=True))
    client, usage = shown(*in_pieces(asked, data), engine="vllm", call=call_of(endpoint=kind))
    assert client == direct
    assert usage == Usage(prompt=7, completion=len(words))


@given(texts, st.data())
def test_vllm_for_a_client_that_asked_for_the_total_only(words: list[str], data: st.DataObject) -> None:
    direct = b"".join(transcript(*words, usage=(7, len(words))))
    asked = b"".join(transcript(*words, usage=(7, len(words)), continuous=True))
    client, usage = shown(*in_pieces(asked, data), engine="vllm", call=call_of(include_usage=True))
    assert client == direct
    assert usage == Usage(prompt=7, completion=len(words))


def two_choices(*, asked: bool) -> bytes:
    def rest(generated: int) -> dict[str, Any]:
        return {"usage": usage_of((7, generated))} if asked else {}

    def last(generated: int) -> dict[str, Any]:
        return rest(generated) if asked else {"system_fingerprint": FINGERPRINT}

    return b"".join(
        [
            chat_role(index=0, **rest(0)),
            chat_role(index=1, **rest(0)),
            chat(" a", index=0, finish_reason="stop", **last(1)),
            chat(" b", index=1, **rest(1)),
            chat(" c", index=1, finish_reason="length", **last(2)),
            *([usage_event(7, 3)] if asked else []),
            DONE,
        ]
    )


def test_vllm_with_several_choices_is_asked_once_its_fingerprint_is_known() -> None:
    replica, several = replica_of("vllm"), call_of(n=2)
    assert asking(several, "vllm", replica) is None
    replica.learn(FINGERPRINT)
    client, usage = shown(two_choices(asked=True), engine="vllm", call=several, replica=replica)
    assert client == two_choices(asked=False)
    assert usage == Usage(prompt=7, completion=3)


@pytest.mark.parametrize("old", [True, False])
def test_an_engine_that_ignores_the_asking_is_relayed_as_it_is(old: bool) -> None:
    events = transcript("a", "b") if old else [chat_role(), chat("a"), chat("b", finish_reason="stop"), DONE]
    client, usage = shown(*events, engine="vllm", call=call_of())
    assert client == b"".join(events)
    assert usage is None


def llamacpp(*, asked: bool) -> bytes:
    timings = {"timings": {"cache_n": 0, "predicted_ms": 31.843}}
    head = {
        "created": 1,
        "id": "chatcmpl-x",
        "model": "m",
        "system_fingerprint": "b0",
        "object": "chat.completion.chunk",
    }

    def one(index: int, text: str) -> bytes:
        return event({"choices": [{"finish_reason": None, "index": index, "delta": {"content": text}}]} | head)

    def end(index: int) -> list[bytes]:
        finish = {"choices": [{"finish_reason": "length", "index": index, "delta": {}}]} | head
        if not asked:
            return [event(finish | timings)]
        return [event(finish), event({"choices": []} | head | {"usage": usage_of((32, 2))} | timings)]

    return b"".join([one(0, "a"), one(1, "b"), *end(1), one(0, "c"), *end(0), DONE])


@given(st.data())
def test_llamacpp_with_several_choices(data: st.DataObject) -> None:
    client, usage = shown(*in_pieces(llamacpp(asked=True), data), engine="llamacpp", call=call_of(n=2))
    assert client == llamacpp(asked=False)
    assert usage == Usage(prompt=32, completion=4)


def test_a_capture_of_llamacpp_loses_its_usage_and_gets_its_timings_back() -> None:
    _, body = capture("llamacpp/chat_stream_usage")
    client, usage = shown(body, engine="llamacpp", call=call_of())
    assert usage == Usage(prompt=36, completion=12)
    events = [json.loads(part.removeprefix(b"data: ")) for part in client.split(b"\n\n")[:-2]]
    assert all("usage" not in one for one in events)
    assert ["timings" in one for one in events] == [False] * (len(events) - 1) + [True]
    assert client.endswith(DONE)


@pytest.mark.parametrize(
    ("engine", "endpoint", "events"),
    [
        ("sglang", "chat", dialects.sglang_chat),
        ("sglang", "chat", dialects.sglang_tools),
        ("sglang", "chat", dialects.sglang_extension),
        ("sglang", "completions", dialects.sglang_completions),
        ("tgi", "chat", dialects.tgi_chat),
        ("llamacpp", "chat", dialects.llamacpp_chat),
        ("openai", "chat", dialects.ollama_chat),
        ("openai", "completions", dialects.ollama_completions),
        ("openai", "chat", dialects.azure_chat),
        ("openai", "chat", dialects.spaced_chat),
    ],
)
@given(data=st.data())
def test_other_engines(engine: str, endpoint: Endpoint, events: dialects.Events, data: st.DataObject) -> None:
    call = call_of(endpoint=endpoint, include_usage=data.draw(st.booleans()) and engine == "sglang")
    asked = b"".join(events(told=True, running=engine == "sglang"))
    client, usage = shown(*in_pieces(asked, data), engine=engine, call=call)
    assert client == b"".join(events(told=call.include_usage))
    assert usage is not None
    assert (usage.prompt, usage.completion) == (dialects.PROMPT, dialects.COMPLETION)


@given(texts, st.integers(0, 2000))
def test_a_stream_cut_anywhere_shows_no_usage_and_nothing_invented(words: list[str], cut: int) -> None:
    direct = b"".join(transcript(*words))
    asked = b"".join(transcript(*words, usage=(7, len(words)), continuous=True))
    call, replica = call_of(), replica_of("vllm")
    reading = Stream(
        call, engine="vllm", unasked=Unasked(Asking(running=True, keep_total=False), call, "vllm", replica)
    )
    client = reading.feed(asked[: min(cut, len(asked))])
    reading.broken_by = "reset"
    client += reading.end()
    assert b'"usage"' not in client
    # All but the event whose end was to wait for the next one is the engine's own, byte for byte.
    whole = client if direct.startswith(client) else client[: client.rindex(b'"finish_reason":"')]
    assert direct.startswith(whole)
    assert reading.at_boundary == (not client or client.endswith(b"\n\n"))


def test_an_engines_error_inside_the_stream_is_passed_on() -> None:
    events = [chat_role(), chat(" a"), error_event(), DONE]
    assert shown(*events, engine="vllm", call=call_of())[0] == b"".join(events)


@pytest.mark.parametrize(
    ("engine", "call", "asked"),
    [
        ("vllm", call_of(), Asking(running=True, keep_total=False)),
        ("sglang", call_of(), Asking(running=True, keep_total=False)),
        ("vllm", call_of(include_usage=True), Asking(running=True, keep_total=True)),
        ("vllm", call_of(include_usage=True, running=True), None),
        ("vllm", call_of(running=True), Asking(running=True, keep_total=False)),  # vLLM needs include_usage for it
        ("llamacpp", call_of(), Asking(running=False, keep_total=False)),
        ("llamacpp", call_of(include_usage=True), None),
        ("llamacpp", call_of(endpoint="completions"), None),  # always tells
        ("tgi", call_of(endpoint="completions"), None),  # always tells
        ("tgi", call_of(), Asking(running=False, keep_total=False)),
        ("openai", call_of(), Asking(running=False, keep_total=False)),
    ],
)
def test_what_is_asked_of_whom(engine: str, call: Call, asked: Asking | None) -> None:
    assert asking(call, engine, replica_of(engine)) == asked


def test_comments_and_other_fields_stay_where_they_are() -> None:
    noise = b": keep-alive\n\n"
    direct = transcript(" a", " b")
    asked = transcript(" a", " b", usage=(7, 2), continuous=True)
    client, _ = shown(asked[0], noise, asked[1], asked[2], *asked[3:], engine="vllm", call=call_of())
    assert client == direct[0] + noise + b"".join(direct[1:])


@pytest.mark.parametrize("asked", [True, False])
def test_after_an_event_that_is_too_large_all_is_relayed_and_nothing_is_counted(asked: bool) -> None:
    call, replica = call_of(include_usage=not asked, running=not asked), replica_of("vllm")
    unasked = Unasked(Asking(running=True, keep_total=False), call, "vllm", replica) if asked else None
    stream = Stream(call, engine="vllm", unasked=unasked)
    first, *rest = transcript(" a", usage=(7, 1), continuous=True)
    sent = [b"data: " + b"x" * (MAX_EVENT_BYTES + 1), b"x\n\n", first, *rest]
    assert b"".join([stream.feed(piece) for piece in sent]) == b"".join(sent)
    stream.ended = True
    assert stream.end() == b""
    outcome = stream.outcome(client_gone=False)
    assert (outcome.ending, outcome.usage.source, outcome.usage_missing) == ("ok", "estimated", "event_too_large")
