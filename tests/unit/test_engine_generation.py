"""Bodies to jobs, jobs to tokens: usage arithmetic, limits, stop strings and refusals of the simulated engine."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.generation import Generation
from gateway.engine.job import Endpoint, Job, parse
from gateway.engine.refusals import EngineRefusal
from gateway.engine.tokenizer import WORDS
from gateway.engine.wire import Answer

CONTEXT = 512

prompts = st.one_of(
    st.text(min_size=1, max_size=40),
    st.lists(st.integers(0, 50_000), min_size=1, max_size=10),
    st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 50_000), min_size=1, max_size=10), min_size=1, max_size=4),
)


def job(body: dict[str, Any], *, endpoint: Endpoint = "completions") -> Job:
    return parse(json.dumps(body).encode(), endpoint=endpoint, model="tiny", max_model_len=CONTEXT)


def run(asked: Job) -> tuple[Generation, list[dict[str, Any]]]:
    """Generate to the end; return the generation and its chunks."""
    generation = Generation(asked)
    answer = Answer(asked, "1", 0, "tiny")
    events = answer.openings(generation)
    while generation.running:
        events += [answer.token(choice, text) for choice, text in generation.step()]
    events += answer.endings(generation)
    return generation, [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


@given(prompt=prompts, n=st.integers(1, 4), max_tokens=st.integers(1, 12))
def test_running_totals_are_of_one_choice_and_the_last_of_the_whole_call(prompt: Any, n: int, max_tokens: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = job({"prompt": prompt, "n": n, "max_tokens": max_tokens, "stream": True, "stream_options": options})
    generation, chunks = run(asked)
    running: dict[int, dict[str, int]] = {}
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        usage = chunk["usage"]
        before = running.get(choice["index"], {"completion_tokens": 0})
        assert usage["completion_tokens"] == before["completion_tokens"] + 1
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        running[choice["index"]] = usage
    total = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert total["completion_tokens"] == sum(usage["completion_tokens"] for usage in running.values())
    assert total["completion_tokens"] == len(asked.prompts) * n * max_tokens == generation.generated
    # Each prompt once, however many choices it has.
    assert total["prompt_tokens"] * n == sum(usage["prompt_tokens"] for usage in running.values())


@given(prompt=prompts, n=st.integers(1, 3))
def test_choices_are_numbered_prompt_by_prompt(prompt: Any, n: int) -> None:
    asked = job({"prompt": prompt, "n": n, "max_tokens": 1, "echo": True})
    texts = [text for _, text in Generation(asked).step()]
    assert len(texts) == len(asked.prompts) * n
    for index, text in enumerate(texts):
        assert text.startswith(asked.prompts[index // n].text)


@given(words=st.integers(1, CONTEXT - 1), max_tokens=st.one_of(st.none(), st.integers(1, CONTEXT)))
def test_never_generates_beyond_the_context(words: int, max_tokens: int | None) -> None:
    asked = job({"prompt": list(range(words)), "max_tokens": max_tokens})
    generation, _ = run(asked)
    assert generation.generated == min(16 if max_tokens is None else max_tokens, CONTEXT - words)


@given(
    stops=st.lists(st.sampled_from([word.strip() or word for word in WORDS]), min_size=1, max_size=4),
    seed=st.integers(),
)
def test_a_stop_string_ends_a_choice_before_it(stops: list[str], seed: int) -> None:
    asked = job({"prompt": "x", "stop": stops, "max_tokens": 200, "seed": seed})
    generation, chunks = run(asked)
    tokens = [chunk["choices"][0]["text"] for chunk in chunks]
    assert not any(stop in token for stop in stops for token in tokens)
    (choice,) = generation.choices
    if choice.finish_reason == "stop":
        assert choice.stop_reason in stops
        assert chunks[-1]["choices"][0]["stop_reason"] == choice.stop_reason
    else:
        assert choice.generated == 200


def test_the_newer_maximum_of_chat_wins() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "max_completion_tokens": 5}
    assert run(job(body, endpoint="chat"))[0].generated == 5


def test_a_prompt_counts_its_text_its_messages_and_its_pictures() -> None:
    parts = [{"type": "text", "text": "12345678"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [{}]}]
    (prompt,) = job({"messages": messages}, endpoint="chat").prompts
    assert prompt.tokens == -(-len("12345678\n[{}]") // 4) + 2 * 4 + 256


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "body.prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": "x", "max_tokens": "many"}, 400, "body.max_tokens"),
    ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "x", "n": 0}, 400, "n"),
    ({"prompt": "x", "n": None}, 400, "body.n"),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"prompt": list(range(CONTEXT))}, 400, "input_tokens"),
    ({"prompt": "x", "model": "other"}, 404, "model"),
]


@pytest.mark.parametrize(("body", "status", "param"), WRONG, ids=[json.dumps(body)[:60] for body, _, _ in WRONG])
def test_refuses_what_vllm_refuses(body: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(EngineRefusal) as refused:
        job(body)
    assert (refused.value.status, refused.value.param) == (status, param)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"null", b"[]", b"[" * 100_000], ids=["empty", "bytes", "null", "list", "deep"]
)
def test_refuses_what_is_no_object(body: bytes) -> None:
    with pytest.raises(EngineRefusal) as refused:
        parse(body, endpoint="chat", model="tiny", max_model_len=CONTEXT)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "extra",
    [{"stream_options": {}}, {"stream_options": None}, {"stop": None}, {"stop": []}, {"top_k": 5}, {"seed": None}],
)
def test_accepts_what_vllm_accepts(extra: dict[str, Any]) -> None:
    assert run(job({"prompt": "x"} | extra))[0].generated == 16
