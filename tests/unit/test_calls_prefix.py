"""Calls that begin alike share a number, as a conversation goes on too, and those of different tenants never do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.call import Endpoint
from gateway.calls.parse import parse
from gateway.calls.prefix import LEADING, LONG, SHORT, Prefixes, prefixes_of
from gateway.config import Requests

SYSTEM = {"role": "system", "content": "You are terse."}
texts = st.text(max_size=20)
parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=2)
said = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.none() | texts | parts,
)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(*messages: dict[str, Any], tenant: str = "acme", **fields: Any) -> Prefixes:
    return prefixes_of({"messages": list(messages), **fields}, tenant=tenant)


def completion(prompt: Any, **fields: Any) -> Prefixes:
    return prefixes_of({"prompt": prompt, **fields}, tenant="acme")


@given(st.lists(said, max_size=4), texts, st.lists(said, max_size=6))
def test_a_conversation_keeps_its_numbers_as_it_goes_on(
    before: list[dict[str, Any]], asked: str, after: list[dict[str, Any]]
) -> None:
    begun = chat(*before, user(asked))
    later = chat(*before, user(asked), *after)
    assert later[: len(begun)] == begun
    assert 1 <= len(later) <= 2
    assert chat(*before, user(asked), *after, user("and"), assistant("so"), user("on"))[: len(later)] == later


def test_conversations_part_where_they_differ() -> None:
    alike = [chat(SYSTEM, user("Hi"), assistant("Hello"), user(text)) for text in ("a", "b")]
    assert alike[0][0] == alike[1][0] == chat(SYSTEM, user("Hi"))[0]
    assert alike[0][1] != alike[1][1]
    assert len({chat(SYSTEM, user("a")), chat(SYSTEM, user("b")), chat(user("a")), chat(user([]))}) == 4


def test_questions_behind_one_long_document_go_together() -> None:
    document = "x" * LEADING
    assert chat(user(f"{document} Who?")) == chat(user(f"{document} Why?"))


def test_pictures_are_told_apart() -> None:
    same = "data:image/png;base64," + "A" * 500
    pictures = [{"type": "image_url", "image_url": {"url": f"{same}{end}"}} for end in ("x" * 64, "y" * 64)]
    first, second = [chat(user([{"type": "text", "text": "What is it?"}, picture])) for picture in pictures]
    assert first != second


def test_tenants_share_no_number() -> None:
    assert chat(user("a"), tenant="acme") != chat(user("a"), tenant="umbrella")
    assert prefixes_of({"messages": [user("a")], "session_id": "s"}, tenant="x") != chat(user("a"), session_id="s")


@pytest.mark.parametrize("name", ["prompt_cache_key", "session_id"])
def test_a_clients_own_word_for_what_belongs_together_counts_before_what_it_says(name: str) -> None:
    assert chat(user("a"), **{name: "s"}) == chat(user("b"), **{name: "s"}) == completion("c", **{name: "s"})
    assert chat(user("a"), **{name: "s"}) != chat(user("a"), **{name: "t"})
    assert chat(user("a"), **{name: "s" * 10**6}) == chat(user("a"), **{name: "s" * 10**5})  # no longer looked at
    without: tuple[Any, ...] = (None, "", 5, ["s"])
    for none in without:
        assert chat(user("a"), **{name: none}) == chat(user("a"))


def test_a_prompt_keeps_its_numbers_as_it_grows() -> None:
    prompt = "".join(f"{number} " for number in range(5000))
    assert completion(prompt[: SHORT + 1]) == completion(prompt[: LONG - 1]) == completion(prompt)[:1]
    assert completion(prompt[:LONG]) == completion(prompt)
    assert len(completion(prompt)) == 2
    assert completion(prompt[:300]) == completion(prompt[:400])
    assert completion("a") != completion("b")


def test_prompts_of_ids_and_of_several_are_known_by_their_first() -> None:
    ids = list(range(3000))
    assert completion(ids) == completion([ids, [1]]) == completion(ids[:SHORT])
    assert completion(ids) != completion(ids[1:])
    assert completion(["a", "b"]) == completion("a")


def test_no_text_is_too_odd() -> None:
    assert chat(user("\ud800"), tenant="\udfff")
    assert chat({"role": "user"}) != chat({"role": "tool", "content": None})


@pytest.mark.parametrize(("endpoint", "asked"), [("chat", {"messages": [user("a")]}), ("completions", {"prompt": "a"})])
def test_a_body_is_looked_at_only_where_its_model_asks_for_it(endpoint: Endpoint, asked: dict[str, Any]) -> None:
    body = json.dumps({"model": "m"} | asked).encode()
    for by_prefix, expected in (((), ()), ({"other"}, ()), ({"m"}, prefixes_of(asked, tenant="acme"))):
        call = parse(endpoint, body, requests=Requests(), by_prefix=by_prefix, tenant="acme")
        assert call.prefixes == expected
