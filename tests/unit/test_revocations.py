"""Revocations: kept as they were asked for, in force until their end, told once, and nobody else's."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidValue
from gateway.identity.denied import Denied
from gateway.identity.principal import Principal
from gateway.revocations.revocation import asked, judge, place_asked
from gateway.revocations.revocations import Revocations
from gateway.revocations.rows import ROWS
from tests.limiting import SECOND, SetClock

NOW_S = 1_795_953_600.25
SET = {"set_at": "2026-11-29T12:00:00Z"}
# The clock stands at noon.
ONE_O_CLOCK = "2026-11-29T13:00:00Z"
NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=20)
WHOSE = st.fixed_dictionaries({"tenant": NAMES}) | st.fixed_dictionaries(
    {"tenant": NAMES, "key": NAMES}
) | st.fixed_dictionaries({"tenant": NAMES, "jti": NAMES})  # fmt: skip


@given(WHOSE, st.none() | st.text(max_size=200), st.none() | st.sampled_from(["1s", "2h", "366d"]))
def test_a_revocation_is_read_as_it_was_written(whose: dict[str, str], reason: str | None, ends: str | None) -> None:
    more = {"reason": reason, "for": ends}
    one = asked(whose | {name: value for name, value in more.items() if value is not None}, now_s=NOW_S)
    assert one.name.isascii()
    assert one.name.isprintable()
    assert judge(one.name, one.value()).setting == one
    assert place_asked(whose) == one.name


@given(st.lists(WHOSE, min_size=2, max_size=2, unique_by=lambda whose: tuple(sorted(whose.items()))))
@example([{"tenant": "a b"}, {"tenant": "a", "key": "b"}])
@example([{"tenant": "a", "jti": "b"}, {"tenant": "a", "key": "b"}])
def test_different_things_have_different_names(both: list[dict[str, str]]) -> None:
    assert place_asked(both[0]) != place_asked(both[1])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"key": "k"}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "acme", "key": 5}, "key"),
        ({"tenant": "acme", "key": "k", "jti": "j"}, "jti"),
        ({"tenant": "acme", "jti": "x" * 257}, "jti"),
        ({"tenant": "acme", "reason": "x" * 201}, "reason"),
        ({"tenant": "acme", "reason": 5}, "reason"),
        ({"tenant": "acme", "for": "0s"}, "for"),
        ({"tenant": "acme", "for": "367d"}, "for"),
        ({"tenant": "acme", "until": ONE_O_CLOCK}, "until"),
    ],
)
def test_what_is_asked_wrongly_is_named(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        asked(members, now_s=NOW_S)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", {}),
        ("tenant ", {}),
        ("tenants acme", {}),
        ("tenant acme key", {}),
        ("key acme", {}),
        ("key acme k%", {}),
        ("token acme j extra", {}),
        ("key acme k", {"set_at": None}),
        ("key acme k", {"set_at": "now"}),
        ("key acme k", {"until": "2026-11-29"}),
        ("key acme k", {"reason": 5}),
        ("key acme k", {"new": 1}),
    ],
)
def test_what_cannot_be_read_is_told_and_denies_nobody(name: str, value: dict[str, Any]) -> None:
    entry = judge(name, json.dumps(SET | value).encode())
    assert entry.setting is None
    assert entry.fault
    (row,) = ROWS.of([entry], tenant=None, now_s=NOW_S)
    assert row == {"name": name, "in_force": False, "fault": entry.fault}
    assert ROWS.texts(row)[-1] == f"not in force: {entry.fault}"
    assert ROWS.of([entry], tenant="acme", now_s=NOW_S) == []


def test_a_row_says_whose_why_and_until_when() -> None:
    kept = {
        "tenant acme": SET,
        "key acme k": SET | {"reason": "leaked", "until": ONE_O_CLOCK},
        "token other j": SET | {"until": "2026-11-29T11:00:00Z"},
    }
    entries = [judge(name, json.dumps(value).encode()) for name, value in kept.items()]
    assert [ROWS.texts(row) for row in ROWS.of(entries, tenant=None, now_s=NOW_S)] == [
        ("acme", "(all)", "", "", SET["set_at"], "", "in force"),
        ("acme", "k", "", "leaked", SET["set_at"], ONE_O_CLOCK, "in force"),
        ("other", "", "j", "", SET["set_at"], "2026-11-29T11:00:00Z", "not in force: Its time is over."),
    ]
    assert [row["tenant"] for row in ROWS.of(entries, tenant="other", now_s=NOW_S)] == ["other"]


class Live:
    """The revocations of a gateway, and who is denied by them."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.told: list[Denied] = []
        self.revocations = Revocations(self.told.append, self.clock)

    def take(self, kept: dict[str, dict[str, Any]]) -> None:
        self.revocations.take({name: json.dumps(SET | value).encode() for name, value in kept.items()})

    def denied(self, tenant: str, key: str = "k", jti: str | None = None) -> bool:
        return self.told[-1].has(Principal(tenant, key, token_id=jti))


@pytest.fixture
async def live(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    caplog.set_level(logging.INFO)
    live = Live()
    yield live
    live.revocations.close()


async def test_who_is_named_is_denied_and_nobody_else(live: Live) -> None:
    live.take({"tenant gone": {}, "key acme k": {}, "token acme j": {}})
    assert live.denied("gone", "any", "any")
    assert live.denied("acme", "k")
    assert live.denied("acme", "k", "other")
    assert live.denied("acme", "other", "j")
    assert not live.denied("acme", "other")
    assert not live.denied("acme", "other", "k")  # a key's name is not a token's
    assert not live.denied("acme", "j", "other")
    assert not live.denied("else", "k", "j")
    live.take({})
    assert not live.denied("gone")


async def test_only_a_change_of_who_is_denied_is_passed_on(live: Live) -> None:
    live.take({})
    live.take({"key acme k": {}})
    live.take({"key acme k": {"reason": "leaked"}})
    live.take({"key acme k": {"reason": "leaked"}, "nonsense": {}})
    assert len(live.told) == 1
    assert live.revocations.left_out == 1


async def test_it_ends_at_its_time_and_says_so(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.take({})
    live.take({"key acme k": {"until": ONE_O_CLOCK, "reason": "a secret of ours"}})
    live.clock.us += 3599 * SECOND
    live.revocations.end()
    assert live.denied("acme", "k")
    live.clock.us += SECOND
    live.revocations.end()
    assert not live.denied("acme", "k")
    assert caplog.messages == [
        f"revocation key acme k: none -> revoked until {ONE_O_CLOCK}",
        f"revocation key acme k: revoked until {ONE_O_CLOCK} -> none",
    ]
    (entry,) = live.revocations.entries
    assert entry.ended(live.clock.now())


async def test_what_is_found_at_the_start_is_told_in_one_line(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.take({"key acme k": {}, "key acme old": {"until": "2026-11-29T11:00:00Z"}})
    assert caplog.messages == ["revocations: 1 in force of 2 that the store keeps"]
