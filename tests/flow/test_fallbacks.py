"""Fallback models: another model answers what its own pool cannot, unless a byte was sent or the call is at fault."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.deadlines import PROMPTLY_S
from tests.doors import CHAT, COMPLETIONS, Door, OpenDoor
from tests.engines import ScriptedEngine, Step, never, reset, script
from tests.envelope import error_of
from tests.transcripts import answer, chat, chat_role, chunked, head, http, transcript

MoreEngines = Callable[[], Awaitable[ScriptedEngine]]
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
OUTPUT = 50
ASK = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": OUTPUT}
WHOLE = answer("chat", "Hello world", usage=(3, 2))
EVENTS = b"".join(transcript(" Hello", " world", usage=(3, 2)))
FULL = http(b"", status="503 X", headers=[("retry-after", "7")])
ILL = http(b"", status="500 X")
REFUSAL = http(b'{"error": {"message": "no such thing", "param": "stop"}}', status="400 X")
BOTH = ("acme/middle", "acme/big")
RULES = [
    {"name": "requests", "per": ["key", "model"], "requests": 1000, "window": "day"},
    {"name": "tokens", "per": ["key", "model"], "tokens": 1000, "count": "output", "window": "day"},
    {"name": "key-requests", "per": ["key"], "requests": 1000, "window": "day"},
]
NAMES = {"acme/small": "s", "acme/middle": "m", "acme/big": "b"}


def ask(*, stream: bool, **changes: Any) -> dict[str, Any]:
    return ASK | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {}) | changes


class Site:
    """A gateway with the models small, middle and big, each before an engine of its own."""

    def __init__(self, door: Door, *engines: ScriptedEngine) -> None:
        self.door = door
        self.small, self.middle, self.big = engines

    @property
    def asked(self) -> tuple[int, ...]:
        return tuple(len(engine.requests) for engine in (self.small, self.middle, self.big))

    async def charged(self) -> dict[str, tuple[int, int]]:
        """Return how many calls and output tokens the key was charged for each model, and calls of all."""
        await self.door.idle()
        found = {}
        for model in NAMES:
            page = await self.door.get_admin(f"/admin/limits/applied?tenant=acme&key=key-1&model={model}")
            used = {row["rule"]: row["used"] for row in page.json()["data"]}
            if used["requests"] or used["tokens"]:
                found[model] = used["requests"], used["tokens"]
        return found | ({"all": (used["key-requests"], 0)} if used["key-requests"] else {})

    async def line(self) -> str:
        """Return the only call's line of the log."""
        [line] = [line for line in await self.door.logged(1) if '"endpoint":"chat"' in line]
        return line

    async def booked(self) -> dict[str, tuple[int, int, int]]:
        """Return the calls, refused calls and output tokens of each model in the ledger."""
        await self.door.idle()
        rows = (await self.door.get("/v1/usage?group_by=model")).json()["data"]
        return {row["model"]: (row["calls"], row["refused"], row["completion_tokens"]) for row in rows}


OpenSite = Callable[..., Awaitable[Site]]


@pytest.fixture
def open_site(open_door: OpenDoor, scripted_engines: MoreEngines) -> OpenSite:
    """Open a site: `small` has `fallbacks`; `models` and `pools` change single entries."""

    async def open_one(
        *,
        fallbacks: tuple[str, ...] = BOTH,
        rules: tuple[Any, ...] = (),
        models: dict[str, Any] | None = None,
        pools: dict[str, Any] | None = None,
    ) -> Site:
        engines = [await scripted_engines() for _ in range(3)]
        entries: dict[str, Any] = {
            name: {"pool": pool, "aliases": [name[5:]], "served_name": f"engines-{pool}"}
            for name, pool in NAMES.items()
        }
        entries["acme/small"]["fallbacks"] = list(fallbacks)
        for name, changes in (models or {}).items():
            entries[name] |= changes
        door = await open_door(
            *["http://127.0.0.1:9"],
            models=entries,
            pools={
                pool: {"replicas": [engine.url]} | (pools or {}).get(pool, {})
                for pool, engine in zip(NAMES.values(), engines, strict=True)
            },
            limits={"plans": {"standard": [*RULES, *rules]}},
        )
        return Site(door, *engines)

    return open_one


FAILURES: dict[str, tuple[Step, ...]] = {"ill": (ILL,), "full": (FULL,), "broken": (reset,), "silent": (never,)}


@STREAM
@pytest.mark.parametrize("failure", [*FAILURES, "gone"])
async def test_another_model_answers_what_two_pools_cannot_and_is_the_one_that_is_charged(
    open_site: OpenSite, failure: str, *, stream: bool
) -> None:
    pool = {"timeouts": {"first_byte": "200ms", "answer": "200ms"}} if failure == "silent" else {}
    site = await open_site(pools={"s": pool, "m": pool})
    for engine in (site.small, site.middle):
        if failure == "gone":
            await engine.close()
        else:
            engine.answer(*FAILURES[failure])
    reply = await site.door.post(CHAT, ask(stream=stream))
    assert (reply.status, reply.headers["x-gateway-model"]) == (200, "acme/big")
    assert reply.body == (EVENTS if stream else WHOLE)
    assert site.big.requests[0].json()["model"] == "engines-b"
    assert site.big.requests[0].header("x-request-id") == reply.headers["INFERENCE-ID"]
    assert await site.charged() == {"acme/big": (1, 2), "all": (1, 0)}
    assert await site.booked() == {"acme/big": (1, 0, 2)}
    samples = await site.door.idle()
    assert samples.total("gateway_requests_total", endpoint="chat") == 1
    assert samples.total("gateway_requests_total", model="acme/big", outcome="ok", status="200") == 1
    assert samples.total("gateway_tokens_total", kind="completion") == 2
    assert samples.total("gateway_tokens_total", kind="completion", model="acme/big") == 2
    assert samples.total("gateway_upstream_attempts_total") == 3
    assert samples.labels("gateway_fallbacks_total") == [
        {"model": "acme/small", "fallback": "acme/middle", "result": "unanswered"},
        {"model": "acme/small", "fallback": "acme/big", "result": "answered"},
    ]
    line = await site.line()
    assert '"model":"acme/big"' in line
    assert '"pool":"b","attempts":3,"failed_by":"' in line
    assert '","broken_by":null,"fallback_for":"acme/small"' in line


async def test_a_call_that_needs_no_fallback_says_who_answered_and_knows_of_none(open_site: OpenSite) -> None:
    site = await open_site()
    reply = await site.door.post(CHAT, ask(stream=True))
    assert reply.headers["x-gateway-model"] == "acme/small"
    assert site.asked == (1, 0, 0)
    assert await site.charged() == {"acme/small": (1, 2), "all": (1, 0)}
    assert (await site.door.idle()).labels("gateway_fallbacks_total") == []
    assert '"fallback_for":null' in await site.line()


async def test_the_name_in_the_head_is_escaped_where_a_header_cannot_hold_it(
    open_door: OpenDoor, scripted_engine: ScriptedEngine
) -> None:
    names = {"größe 100%\r\nx-evil: 1": "gr%C3%B6%C3%9Fe%20100%25%0D%0Ax-evil:%201", "a/b:c+d@e": "a/b:c+d@e"}
    door = await open_door(scripted_engine.url, models={name: {"pool": "main"} for name in names})
    for name, told in names.items():
        reply = await door.post(CHAT, ask(stream=False, model=name))
        assert (reply.status, reply.headers["x-gateway-model"]) == (200, told)
        assert "x-evil" not in reply.headers


@STREAM
@pytest.mark.parametrize(
    ("failure", "code", "status"), [("full", "overloaded", 503), ("ill", "upstream_error", 502), ("down", "", 503)]
)
async def test_where_nobody_can_answer_the_error_is_that_of_the_model_asked_for_and_nothing_is_charged(
    open_site: OpenSite, failure: str, code: str, status: int, *, stream: bool
) -> None:
    pools = {"s": {"health": {"interval": "50ms", "unhealthy_after": 1}}} if failure == "down" else {}
    site = await open_site(pools=pools)
    if failure == "down":
        site.small.probe = script(ILL)
        await site.door.until(lambda samples: samples.total("gateway_replica_up", pool="s") == 0)
    else:
        site.small.answer(*FAILURES[failure])
    site.middle.answer(reset)
    site.big.answer(FULL if failure == "ill" else ILL)
    reply = await site.door.post(CHAT, ask(stream=stream))
    error_of(reply, status, code or "no_replica_available", "upstream_error" if status == 502 else "server_error")
    if failure == "full":
        assert reply.headers["Retry-After"] == "7"
    assert await site.charged() == {}
    assert await site.booked() == {}
    samples = await site.door.idle()
    assert samples.total("gateway_requests_total", model="acme/small", outcome="upstream_failed") == 1
    assert samples.total("gateway_requests_total", endpoint="chat") == 1
    assert samples.total("gateway_fallbacks_total", result="unanswered") == 2
    assert '"model":"acme/small"' in await site.line()


@STREAM
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_model_that_the_caller_may_not_use_is_never_asked_and_never_told_of(
    open_site: OpenSite, path: str, *, stream: bool
) -> None:
    site = await open_site(fallbacks=("acme/big",))
    body = ask(stream=stream)
    if path == COMPLETIONS:
        body = {name: value for name, value in body.items() if name != "messages"} | {"prompt": "Hi"}
    for step, status in ((ILL, 502), (FULL, 503)):
        site.small.answer(step)
        reply = await site.door.post(path, body, token=site.door.token_of(models=["acme/small"]))
        assert reply.status == status
        assert b"big" not in reply.body
        assert "x-gateway-model" not in reply.headers
    assert site.asked[1:] == (0, 0)
    site.small.answer(ILL)
    reply = await site.door.post(path, body, token=site.door.token_of(models=["acme/small", "acme/b*"]))
    assert (reply.status, reply.headers["x-gateway-model"]) == (200, "acme/big")
    assert await site.booked() == {"acme/big": (1, 0, 2)}


async def test_models_are_shown_with_the_fallbacks_that_the_caller_may_use(open_site: OpenSite) -> None:
    site = await open_site()
    for models, shown in ((["*"], list(BOTH)), (["acme/small", "acme/big"], ["acme/big"]), (["acme/small"], None)):
        page = (await site.door.get("/v1/models/small", token=site.door.token_of(models=models))).json()
        assert page.get("fallbacks") == shown
    listed = (await site.door.get("/v1/models")).json()["data"]
    assert [one.get("fallbacks") for one in listed] == [None, list(BOTH), None, None]  # the first is every door's


@STREAM
async def test_a_call_that_its_engine_refuses_is_refused(open_site: OpenSite, *, stream: bool) -> None:
    site = await open_site()
    site.small.answer(REFUSAL)
    error_of(
        await site.door.post(CHAT, ask(stream=stream)), 400, "invalid_value", "invalid_request_error", param="stop"
    )
    assert site.asked == (1, 0, 0)
    assert await site.charged() == {"acme/small": (1, 0), "all": (1, 0)}


@STREAM
async def test_what_a_fallback_says_of_the_call_is_not_what_was_asked(open_site: OpenSite, *, stream: bool) -> None:
    site = await open_site()
    for _ in range(2):
        site.small.answer(FULL)
        site.middle.answer(REFUSAL)
    assert (await site.door.post(CHAT, ask(stream=stream))).headers["x-gateway-model"] == "acme/big"
    await site.door.idle()
    site.big.answer(REFUSAL)
    site.middle.answer(REFUSAL)
    reply = await site.door.post(CHAT, ask(stream=stream))
    error_of(reply, 503, "overloaded", "server_error")
    assert await site.charged() == {"acme/big": (1, 2), "all": (1, 0)}


async def test_nothing_falls_back_once_an_event_went_out(open_site: OpenSite) -> None:
    site = await open_site()
    events = [chat_role(), chat(" a")]
    site.small.answer(head(), *map(chunked, events), reset)
    reply = await site.door.post(CHAT, ask(stream=True))
    assert reply.body.startswith(b"".join(events))
    assert b"upstream_error" in reply.body
    assert site.asked == (1, 0, 0)
    assert await site.charged() == {"acme/small": (1, 1), "all": (1, 0)}


async def test_a_fallback_that_breaks_off_is_charged_what_it_generated(open_site: OpenSite) -> None:
    site = await open_site()
    site.small.answer(ILL)
    site.middle.answer(head(), chunked(chat_role()), chunked(chat(" a")), reset)
    reply = await site.door.post(CHAT, ask(stream=True))
    assert reply.headers["x-gateway-model"] == "acme/middle"
    assert site.asked == (1, 1, 0)
    assert await site.charged() == {"acme/middle": (1, 1), "all": (1, 0)}


async def test_comments_count_as_nothing_sent_and_go_on_while_others_are_asked(open_site: OpenSite) -> None:
    comments = {"keep_alive_comments": "100ms", "timeouts": {"first_byte": "1200ms"}}
    site = await open_site(pools={"s": comments, "m": {"timeouts": {"first_byte": "1200ms"}}})
    site.small.answer(never)
    site.middle.answer(never)
    reply = await site.door.post(CHAT, ask(stream=True))
    comment = b": keep-alive\n\n"
    assert reply.status == 200
    assert reply.body.startswith(comment)
    assert reply.body.replace(comment, b"") == EVENTS
    assert "x-gateway-model" not in reply.headers  # nobody knew when the head went out
    assert await site.charged() == {"acme/big": (1, 2), "all": (1, 0)}


async def test_a_client_that_leaves_a_fallback_before_it_answers_ends_all_of_it(open_site: OpenSite) -> None:
    site = await open_site()
    site.small.answer(FULL)
    site.middle.answer(never)
    call = asyncio.create_task(site.door.post(CHAT, ask(stream=True)))
    await site.middle.asked()
    call.cancel()
    await site.middle.requests[0].connection.gone(within_s=PROMPTLY_S)
    samples = await site.door.idle()
    assert site.asked == (1, 1, 0)
    assert samples.total("gateway_requests_total", model="acme/middle", outcome="client_gone") == 1
    assert samples.total("gateway_requests_in_flight") == 0
    charged = await site.charged()
    assert set(charged) == {"acme/middle", "all"}
    assert charged["acme/middle"][0] == charged["all"][0] == 1


async def test_nothing_falls_back_beyond_the_clients_deadline(open_site: OpenSite) -> None:
    site = await open_site()
    site.small.answer(never)
    reply = await site.door.post(CHAT, ask(stream=True), **{"x-request-timeout-ms": "2000"})
    error_of(reply, 502, "upstream_timeout", "upstream_error")
    assert site.asked == (1, 0, 0)


@STREAM
async def test_a_deadline_that_passes_in_a_fallback_charges_the_model_that_was_asked_for(
    open_site: OpenSite, *, stream: bool
) -> None:
    site = await open_site()
    site.small.answer(ILL)
    site.middle.answer(never)
    reply = await site.door.post(CHAT, ask(stream=stream), **{"x-request-timeout-ms": "700"})
    error_of(reply, 502, "upstream_timeout", "upstream_error")
    assert site.asked == (1, 1, 0)
    assert await site.charged() == {"acme/small": (1, 0), "all": (1, 0)}
    assert await site.booked() == {"acme/small": (1, 0, 0)}


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}, {}),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            {"content_parts": ["image_url"]},
        ),
        ({"max_tokens": 900}, {"max_model_len": 800}),
        ({"messages": [{"role": "user", "content": "Hi" * 4000}]}, {"max_model_len": 800}),
    ],
)
async def test_a_fallback_without_what_the_call_needs_is_passed_over(
    open_site: OpenSite, changes: dict[str, Any], entry: dict[str, Any]
) -> None:
    able = {"tool_choice": ["auto", "none", "required"]}
    site = await open_site(models={"acme/small": able, "acme/big": able, "acme/middle": entry})
    site.small.answer(ILL)
    reply = await site.door.post(CHAT, ask(stream=False, **changes))
    assert (reply.status, reply.headers["x-gateway-model"]) == (200, "acme/big")
    assert site.asked == (1, 0, 1)


async def test_a_limit_of_its_own_keeps_a_call_from_a_fallback_and_is_told_to_operators_only(
    open_site: OpenSite,
) -> None:
    narrow = {"name": "narrow", "per": ["key"], "requests": 1, "window": "day", "models": ["acme/middle"]}
    site = await open_site(rules=(narrow,))
    for _ in range(2):
        site.small.answer(ILL)
    replies = [await site.door.post(CHAT, ask(stream=False)) for _ in range(2)]
    assert [reply.headers["x-gateway-model"] for reply in replies] == ["acme/middle", "acme/big"]
    site.small.answer(ILL)
    site.big.answer(ILL)
    error_of(await site.door.post(CHAT, ask(stream=False)), 502, "upstream_error", "upstream_error")
    samples = await site.door.idle()
    assert samples.total("gateway_limit_decisions_total", rule="narrow", decision="refused") == 2
    assert samples.total("gateway_fallbacks_total", fallback="acme/middle", result="limited") == 2
    assert await site.charged() == {"acme/middle": (1, 2), "acme/big": (1, 2), "all": (2, 0)}
    assert await site.booked() == {"acme/middle": (1, 0, 2), "acme/big": (1, 0, 2)}


async def test_slots_of_both_models_are_held_and_come_free(open_site: OpenSite) -> None:
    slots = {"name": "slots", "per": ["model"], "concurrent": 1}
    site = await open_site(fallbacks=("acme/big",), rules=(slots,))
    for n in range(3):
        site.small.answer(ILL)
        if n % 2:
            site.big.answer(ILL)
        assert (await site.door.post(CHAT, ask(stream=True))).status == (502 if n % 2 else 200)
        await site.door.idle()
    gate = asyncio.Event()
    site.small.answer(ILL)
    site.big.answer(head(), chunked(chat_role()), gate, reset)
    call = asyncio.create_task(site.door.post(CHAT, ask(stream=True)))
    await site.big.asked(4)
    for model in ("small", "big"):
        error_of(await site.door.post(CHAT, ask(stream=False, model=model)), 429, "rate_limit_exceeded", "concurrency")
    gate.set()
    await call
    await site.door.idle()
    for model in ("small", "big"):
        assert (await site.door.post(CHAT, ask(stream=False, model=model))).status == 200


async def test_a_fallbacks_own_fallbacks_are_not_followed_and_two_models_may_be_each_others(
    open_site: OpenSite,
) -> None:
    chain = {"acme/middle": {"fallbacks": ["acme/small", "acme/big"]}}
    site = await open_site(fallbacks=("acme/middle",), models=chain)
    site.small.answer(ILL)
    site.middle.answer(ILL)
    error_of(await site.door.post(CHAT, ask(stream=False)), 502, "upstream_error", "upstream_error")
    assert site.asked == (1, 1, 0)
