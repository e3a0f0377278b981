"""The judges of `make chaos` find what is wrong: each is shown a run in which one thing is, and one that is right."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.admission.rules import Rulebook
from gateway.identity.principal import Principal
from tests.chaos import answers, books, events, quotas, remains, spending
from tests.chaos.calls import Planned, planned
from tests.chaos.client import Seen
from tests.chaos.engines import Attempt
from tests.chaos.evidence import Evidence
from tests.chaos.gateways import Life
from tests.chaos.plans import MODELS, TIGHT, limits
from tests.chaos.topologies import StoreKey
from tests.processes import Running

REPLICA = "127.0.0.1:11000"
BEGAN_US = 1_795_953_600_000_000


def stream() -> Planned:
    """Return a call of one choice whose answer is streamed."""
    return next(
        one
        for one in planned(7)
        if not (one.wrong or one.leaves_s or one.deadline_ms) and one.stream and one.parsed.choices == 1
    )


class Story:
    """A run of one call that goes well, to be changed."""

    def __init__(self, directory: Path) -> None:
        self.call = stream()
        tokens = self.call.parsed.output_tokens or 0
        attempt = Attempt(REPLICA, "id-1", BEGAN_US, prompt=9, seed=self.call.number, ended=True)
        attempt.tokens_us = [BEGAN_US + 8000 * number for number in range(tokens)]
        self.attempts = [attempt]
        self.seen = [Seen(self.call, 0, 0, "whole", 200, "id-1", texts=dict(enumerate(self.call.texts)))]
        self.seen[0].model = self.call.model
        self.line: dict[str, Any] = {
            "time": "2026-11-29T12:00:01.000Z",
            "inference_id": "id-1",
            "tenant": self.call.tenant,
            "key": self.call.key,
            "model": self.call.model,
            "status": 200,
            "outcome": "ok",
            "stream": True,
            "prompt_tokens": 9,
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "usage_source": "engine",
            "replica": REPLICA,
            "attempts": 1,
            "broken_by": None,
            "duration_ms": 900.0,
            "overhead_ms": 1.0,
            "error_code": None,
        }
        self.lines = [self.line]
        account = self.call.tenant, self.call.key, self.call.model
        self.ledger = {account: Counter({"calls": 1, "prompt_tokens": 9, "completion_tokens": tokens})}
        self.event = {
            "call": "id-1",
            "event": "settled",
            "tenant": self.call.tenant,
            "key": self.call.key,
            "model": self.call.model,
            "prompt_tokens": "9",
            "completion_tokens": str(tokens),
            "cached_tokens": "0",
            "source": "engine",
        }
        self.events = [self.event]
        self.keys: list[StoreKey] = []
        self.outdated: list[str] = []
        self.life = Life(0, 0, Running(None, directory / "log-0", "", ""), "stopped", 0)  # type: ignore[arg-type] # gone

    def evidence(self) -> Evidence:
        self.life.running.log_path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        self.life.read_log()
        return Evidence(
            seen=self.seen,
            lives=[self.life],
            attempts=self.attempts,
            faults=[],
            ledger=self.ledger,
            keys=[*self.keys, StoreKey("gw:{x}:events", "stream", 1000, entries=tuple(self.events))],
            gauges={},
            outdated=self.outdated,
            journals={},
            one_month=True,
        )

    def violations(self) -> list[str]:
        evidence = self.evidence()
        judges = (books.judge, events.judge, answers.judge, remains.judge)
        return [one.invariant for judge in judges for one in judge(evidence)]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_run_in_which_all_is_right_has_no_violations(story: Story) -> None:
    assert story.violations() == []


def booked(story: Story, **more: int) -> None:
    """Book so much more, in the ledger and in its event."""
    (figures,) = story.ledger.values()
    for name, add in more.items():
        figures[name] += add
        if name in story.event:
            story.event[name] = str(int(story.event[name]) + add)


def charged_too_little(story: Story) -> None:
    story.line["completion_tokens"] -= 1
    booked(story, completion_tokens=-1)


def booked_too_much(story: Story) -> None:
    next(iter(story.ledger.values()))["prompt_tokens"] += 1


def booked_twice(story: Story) -> None:
    next(iter(story.ledger.values()))["calls"] += 1


def not_booked(story: Story) -> None:
    story.ledger.clear()
    story.events.clear()


def booked_out_of_nothing(story: Story) -> None:
    story.line.update(prompt_tokens=None, completion_tokens=None, outcome="upstream_failed", status=502)
    story.attempts.clear()
    story.seen[0].ending, story.seen[0].status, story.seen[0].code = "refused", 502, "upstream_error"


def told_twice(story: Story) -> None:
    story.events.append(story.event)


def told_otherwise(story: Story) -> None:
    story.event["completion_tokens"] = "0"


def without_a_trace(story: Story) -> None:
    story.lines.clear()
    story.ledger.clear()
    story.events.clear()


def left_and_charged_nothing(story: Story) -> None:
    booked(story, completion_tokens=-story.line["completion_tokens"])
    story.line.update(outcome="client_gone", completion_tokens=0)
    story.attempts[0].ended = False
    story.attempts[0].cut_us = BEGAN_US + 5_000_000
    story.seen[0].ending = "left"


def half_and_said_to_be_whole(story: Story) -> None:
    story.seen[0].texts[0] = story.seen[0].texts[0][:-1]


def other_words(story: Story) -> None:
    story.seen[0].ending = "told"
    story.seen[0].code = "upstream_error"
    story.seen[0].texts[0] = "other words"


def a_defect(story: Story) -> None:
    story.seen[0].status, story.seen[0].code, story.seen[0].ending = 500, "internal_error", "refused"


def no_end(story: Story) -> None:
    story.seen[0].ending = "silent"


def cut_off(story: Story) -> None:
    story.seen[0].ending = "cut"


def another_models(story: Story) -> None:
    story.seen[0].model = "chaos/other"


def a_config_of_before(story: Story) -> None:
    story.outdated.append("gateway 0")


def a_lease(story: Story) -> None:
    story.keys.append(StoreKey("gw:{x}:slots", "zset", 5000, size=1))


def a_key_for_ever(story: Story) -> None:
    story.keys.append(StoreKey("gw:{x}:y", "string", -1, value="1 1"))


def a_crash(story: Story) -> None:
    story.life.exit_code = 1


def a_traceback(story: Story) -> None:
    message = {"time": "2026-11-29T12:00:01.000Z", "level": "error", "message": "a defect", "exception": "Traceback"}
    story.lines.append(message)


@pytest.mark.parametrize(
    ("change", "invariants"),
    [
        (charged_too_little, ["a call is charged what its engine generated"]),
        (left_and_charged_nothing, ["a call is charged what its engine generated"]),
        (booked_too_much, ["events add up to the ledger"]),
        (booked_twice, ["events add up to the ledger"]),
        (not_booked, ["every call is in the ledger"]),
        (booked_out_of_nothing, ["nothing but calls is in the ledger"]),
        (told_twice, ["a call has one event", "events add up to the ledger"]),
        (told_otherwise, ["events add up to the ledger", "an event says what its call's line says"]),
        (without_a_trace, ["what is generated leaves a trace"]),
        (half_and_said_to_be_whole, ["what looks whole is whole"]),
        (other_words, ["what came is what the engine said"]),
        (a_defect, ["every error is a documented one"]),
        (no_end, ["no stream ends well without saying that it is whole"]),
        (another_models, ["an answer says which model gave it"]),
        (a_config_of_before, ["a gateway goes by the config that is there"]),
        (cut_off, ["only a gateway that is killed cuts its clients off"]),
        (a_lease, ["no lease is leaked"]),
        (a_key_for_ever, ["every key has an expiry"]),
        (a_crash, ["no gateway ends by itself"]),
        (a_traceback, ["no error and no traceback is logged"]),
    ],
)
def test_one_thing_that_is_wrong_is_found(story: Story, change: Callable[[Story], None], invariants: list[str]) -> None:
    change(story)
    assert story.violations() == invariants


def test_a_call_of_a_killed_gateway_is_in_the_ledger_whole_or_not_at_all(story: Story) -> None:
    story.life.ending, story.life.exit_code = "killed", -9
    story.lines.clear()
    assert story.violations() == []
    booked(story, completion_tokens=-1)
    assert story.violations() == ["an event of a killed gateway says what its engine generated"]
    story.ledger.clear()
    story.events.clear()
    assert story.violations() == []


def test_a_call_under_way_at_a_killed_gateway_that_nobody_has_reserved_is_found(story: Story) -> None:
    without_a_trace(story)
    (attempt,) = story.attempts
    story.life.ending, story.life.exit_code, story.life.killed_us = "killed", -9, BEGAN_US + 500_000
    attempt.tokens_us = [BEGAN_US + 40_000 * number for number in range(13)]
    attempt.ended, attempt.cut_us = False, story.life.killed_us + 1
    story.seen[0].ending = "cut"
    assert story.violations() == ["what a killed gateway left under way is reserved"]
    story.keys.append(StoreKey("gw:{x}:call:id-1", "string", 5000, value=str(BEGAN_US)))
    assert story.violations() == []


def test_a_worker_that_is_killed_takes_its_calls_and_lines_of_late_with_it_and_no_others(story: Story) -> None:
    story.life.workers, story.life.lost = 2, [BEGAN_US + 200_000]
    (seen,) = story.seen
    seen.sent_us, seen.over_us, seen.ending = BEGAN_US, BEGAN_US + 210_000, "cut"
    ended = {"level": "error", "message": "worker 1 ended (killed: Killed); another starts in 0 s", "exception": None}
    story.lines[:] = [{"time": "2026-11-29T12:00:00.000Z", "inference_id": None, **ended}]
    assert story.violations() == []
    seen.sent_us, seen.over_us = BEGAN_US + 400_000, BEGAN_US + 900_000
    assert story.violations() == [
        "what is generated leaves a trace",
        "nothing but calls is in the ledger",
        "only a gateway that is killed cuts its clients off",
    ]


def test_workers_are_alone_while_all_of_them_are_and_not_when_one_was_replaced(story: Story) -> None:
    def message(second: int, worker: int | None, text: str) -> dict[str, Any]:
        time = f"2026-11-29T12:00:{second:02}.000Z"
        return {"time": time, "level": "warning", "message": text, "exception": None, "worker": worker}

    away, back = "the limit store does not answer: it is away", "the limit store answers again"
    story.life.workers, story.life.lost = 2, [BEGAN_US + 4_000_000]
    story.lines[:] = [
        message(1, 0, away),
        message(2, 1, away),
        message(4, None, "worker 0 ended (killed: Killed); another starts in 0 s"),
        message(6, 1, back),
    ]
    story.life.running.log_path.write_text("".join(json.dumps(line) + "\n" for line in story.lines))
    story.life.read_log()
    spans = [[(round((at - BEGAN_US) / 1e6)) for at in span] for span in (*story.life.away, *story.life.alone)]
    assert spans == [[1, 4], [2, 6], [2, 4]]


def test_what_is_counted_for_another_model_than_answered_is_found(story: Story) -> None:
    settings = config.Limits.model_validate(limits("memory", "/", lease_s=6) | {"journal": None, "events": None})
    (figures,) = story.ledger.values()
    used = figures["prompt_tokens"] + figures["completion_tokens"]
    principal = Principal(tenant=story.call.tenant, key="key-0", plan=None, models=None)

    def counted(model: str) -> list[str]:
        """Return what is violated where everything is counted as `model`'s."""
        applying = Rulebook(settings).applying(principal, model=model, pool="large")
        evidence = story.evidence()
        evidence.keys += [StoreKey(one.key, "string", 1000, value=f"{used} 1") for one in applying.limits]
        return [one.invariant for one in quotas.judge(evidence, settings)]

    other = next(model for model in MODELS if model != story.call.model)
    assert counted(story.call.model) == []
    assert counted(other) == ["a quota of a model counts who answered"]


def test_a_gateway_that_does_not_stop_is_found(story: Story) -> None:
    story.life.lingers = True
    assert story.violations() == ["a gateway that is told to stop does"]


def test_more_calls_than_a_limit_admits_are_found(story: Story) -> None:
    (tight,) = [one for one in TIGHT if one.rule == "daily-calls"]
    numbers = count()

    def admit(times: int) -> None:
        for number in [next(numbers) for _ in range(times)]:
            story.lines.append(story.line | {"inference_id": f"id-{number}", "tenant": tight.tenant})
            story.attempts.append(Attempt(REPLICA, f"id-{number}", BEGAN_US + 200_000, prompt=9, seed=-number))

    story.lines.clear()
    admit(tight.limit)
    assert not list(spending.judge(story.evidence(), lease_s=6))
    admit(1)
    assert [one.invariant for one in spending.judge(story.evidence(), lease_s=6)] == ["limit daily-calls is kept"]
