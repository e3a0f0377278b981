"""Overrides of a running gateway: they hold from when they are taken until they end, and each change is told once."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway import config
from gateway.admission.overrides.overrides import Overrides
from gateway.admission.rules import Rulebook
from gateway.identity.principal import Principal
from tests.limiting import SECOND, SetClock

SET = {"set_at": "2026-11-29T12:00:00Z"}
# The clock stands at noon.
ONE_O_CLOCK = "2026-11-29T13:00:00Z"
LIMITS = config.Limits.model_validate(
    {
        "plans": {"standard": [{"name": "few", "per": ["key"], "requests": 10, "window": "1m"}]},
        "tenants": {"configured": {"override": {"few": {"requests": 20}}}},
    }
)


class Live:
    """A rulebook, and the overrides that change it."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.book = Rulebook(LIMITS)
        self.overrides = Overrides(LIMITS, self.book, self.clock)

    def take(self, kept: dict[str, dict[str, Any]]) -> None:
        self.overrides.take({name: json.dumps(value | SET).encode() for name, value in kept.items()})

    def limit(self, tenant: str = "acme", key: str = "key-1") -> int:
        return self.book.applying(Principal(tenant, key), model="m", pool="p").limits[0].limit


@pytest.fixture
async def live(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    caplog.set_level(logging.INFO)
    live = Live()
    yield live
    live.overrides.close()


async def test_what_is_taken_holds_from_the_next_call_on_and_what_is_gone_no_longer(live: Live) -> None:
    assert live.limit() == 10
    live.take({"rule few acme": {"requests": 30}, "rule few acme key-2": {"requests": 40}})
    assert [live.limit(), live.limit(key="key-2"), live.limit("other")] == [30, 40, 10]
    live.take({"rule few acme key-2": {"requests": 50}, "rule few configured": {"requests": 60}})
    assert [live.limit(), live.limit(key="key-2"), live.limit("configured")] == [10, 50, 60]
    live.take({})
    assert [live.limit(), live.limit(key="key-2"), live.limit("configured")] == [10, 10, 20]


async def test_an_override_ends_at_its_time_and_says_so(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.take({"rule few acme": {"requests": 30, "until": ONE_O_CLOCK}})
    live.clock.us += 3599 * SECOND
    live.overrides.end()
    assert live.limit() == 30
    live.clock.us += SECOND
    live.overrides.end()
    assert live.limit() == 10
    assert caplog.messages[-1] == f"override rule few acme: requests 30 until {ONE_O_CLOCK} -> none"
    (entry,) = live.overrides.entries
    assert entry.ended(live.clock.now())
    assert (len(live.overrides.holding), live.overrides.left_out) == (0, 0)


async def test_what_had_ended_before_it_was_taken_never_holds(live: Live) -> None:
    live.clock.us += 3600 * SECOND
    live.take({"rule few acme": {"requests": 30, "until": ONE_O_CLOCK}})
    assert live.limit() == 10


async def test_each_change_is_one_line_with_what_was_before(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.take({"rule few acme": {"requests": 30}})
    assert caplog.messages == ["overrides: 1 in force of 1 that the store keeps"]
    live.take({"rule few acme": {"requests": 40, "shadow": True}, "plan other": {"plan": "standard"}})
    live.take({"plan other": {"plan": "standard"}})
    assert caplog.messages[1:] == [
        "override rule few acme: requests 30 -> requests 40, shadow true",
        "override plan other: none -> plan standard",
        "override rule few acme: requests 40, shadow true -> none",
    ]


async def test_what_cannot_hold_is_told_once_counted_and_left_out(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    kept = {"rule gone acme": {"requests": 30}, "rule few acme": {"requests": 40}, "n\no\ud800n": {}}
    live.take(kept)
    live.take(kept | {"rule few acme": {"requests": 50}})
    assert live.limit() == 50
    assert (len(live.overrides.holding), live.overrides.left_out) == (1, 2)
    faults = [message for message in caplog.messages if "does not hold" in message]
    assert faults == [
        "override 'rule gone acme' does not hold: No plan has a rule 'gone'; there are few.",
        r"override 'n\no\ud800n' does not hold: Its name is not one of an override.",
    ]


async def test_an_override_that_becomes_unusable_leaves_the_config_in_force(live: Live) -> None:
    live.take({"rule few configured": {"requests": 30}})
    assert live.limit("configured") == 30
    live.take({"rule few configured": {"tokens": 30}})
    assert live.limit("configured") == 20
