"""The judges of `make chaos` find what is wrong: each is shown a run in which one thing is, and one that is right."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import answers, books, remains, spending
from tests.chaos.calls import Planned, planned
from tests.chaos.client import Seen
from tests.chaos.engines import Attempt
from tests.chaos.evidence import Evidence
from tests.chaos.gateways import Life
from tests.chaos.plans import TIGHT
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
        self.keys: list[StoreKey] = []
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
            keys=self.keys,
            gauges={},
            journals={},
            one_month=True,
        )

    def violations(self) -> list[str]:
        evidence = self.evidence()
        judges = (books.judge, answers.judge, remains.judge)
        return [one.invariant for judge in judges for one in judge(evidence)]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_run_in_which_all_is_right_has_no_violations(story: Story) -> None:
    assert story.violations() == []


def charged_too_little(story: Story) -> None:
    story.line["completion_tokens"] -= 1
    next(iter(story.ledger.values()))["completion_tokens"] -= 1


def booked_too_much(story: Story) -> None:
    next(iter(story.ledger.values()))["prompt_tokens"] += 1


def booked_twice(story: Story) -> None:
    next(iter(story.ledger.values()))["calls"] += 1


def without_a_trace(story: Story) -> None:
    story.lines.clear()
    story.ledger.clear()


def left_and_charged_nothing(story: Story) -> None:
    story.line.update(outcome="client_gone", completion_tokens=0)
    next(iter(story.ledger.values()))["completion_tokens"] = 0
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
    ("change", "invariant"),
    [
        (charged_too_little, "a call is charged what its engine generated"),
        (left_and_charged_nothing, "a call is charged what its engine generated"),
        (booked_too_much, "the ledger is the sum of its calls"),
        (booked_twice, "the ledger is the sum of its calls"),
        (without_a_trace, "what is generated leaves a trace"),
        (half_and_said_to_be_whole, "what looks whole is whole"),
        (other_words, "what came is what the engine said"),
        (a_defect, "every error is a documented one"),
        (no_end, "no stream ends well without saying that it is whole"),
        (cut_off, "only a gateway that is killed cuts its clients off"),
        (a_lease, "no lease is leaked"),
        (a_key_for_ever, "every key has an expiry"),
        (a_crash, "no gateway ends by itself"),
        (a_traceback, "no error and no traceback is logged"),
    ],
)
def test_one_thing_that_is_wrong_is_found(story: Story, change: Callable[[Story], None], invariant: str) -> None:
    change(story)
    assert story.violations() == [invariant]


def test_a_call_of_a_killed_gateway_is_in_the_ledger_whole_or_not_at_all(story: Story) -> None:
    story.life.ending, story.life.exit_code = "killed", -9
    story.lines.clear()
    assert story.violations() == []
    (figures,) = story.ledger.values()
    figures["completion_tokens"] -= 1
    assert story.violations() == ["the ledger is the sum of its calls"]
    story.ledger.clear()
    assert story.violations() == []


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
