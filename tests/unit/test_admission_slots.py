"""What a cluster's nodes say of slots, and what a call has in which."""

from typing import Any

import pytest
from redis.crc import key_slot

from gateway.admission.ledger.account import EVERYBODYS
from gateway.admission.redis.parts import of_reservation, of_settlement
from gateway.admission.redis.slots import Range, moved, ranges, slot_of, tags
from gateway.calls.usage import Usage
from tests.limiting import TAG, limit, reservation

HERE = ("10.0.0.1", 6379)


def test_a_tag_has_the_slot_of_every_key_that_it_stands_in() -> None:
    assert slot_of(TAG) == key_slot(f"gw:{{{TAG}}}:call:1".encode()) == key_slot(f"gw:{{{TAG}}}:ledger:x".encode())


def test_there_is_a_tag_in_nearly_every_part_of_the_slots() -> None:
    assert len({slot // 164 for _, slot in tags()}) == 100
    assert all(slot == slot_of(tag) for tag, slot in tags())


def test_ranges_and_nodes_are_read_also_where_a_node_does_not_know_its_own_address() -> None:
    reply: list[Any] = [
        [0, 99, [b"10.0.0.2", 7000, b"id", []], [b"10.0.0.3", 7001, b"id", [b"hostname", b"x"]]],
        [100, 100, [None, 7002, b"id"]],
        [101, 200, [b"", 7003, b"id"]],
        [201, 16383, [b"?", 7004, b"id"], [b"host.example", 7005, b"id"]],
    ]
    found, nodes = ranges(reply, asked=HERE)
    assert found == [
        Range(0, 100, ("10.0.0.2", 7000)),
        Range(100, 101, ("10.0.0.1", 7002)),
        Range(101, 201, ("10.0.0.1", 7003)),
    ]
    assert ("host.example", 7005) in nodes
    assert len(nodes) == 5


@pytest.mark.parametrize(
    ("error", "to"),
    [
        ("MOVED 3999 127.0.0.1:6381", (3999, ("127.0.0.1", 6381))),
        ("MOVED 1 fe80::1:6381", (1, ("fe80::1", 6381))),
        ("MOVED 2 :6381", (2, ("10.0.0.1", 6381))),
        ("ASK 3999 127.0.0.1:6381", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
    ],
)
def test_where_a_slot_has_moved(error: str, to: tuple[int, tuple[str, int]] | None) -> None:
    assert moved(error, asked=HERE) == to


def test_a_call_without_limits_of_everybody_is_one_part() -> None:
    call = reservation("call", (limit("day", 10), 3))
    assert of_reservation(call) == (call, None, ())
    settlement = call.settlement(Usage(1, 2))
    assert of_settlement(settlement) == (settlement,)


def test_parts_have_between_them_what_the_whole_had_and_the_tenants_has_what_is_booked() -> None:
    mine, everybodys = limit("day", 10), limit("day", 10, key="gw:{all}:day")
    call = reservation("call", (everybodys, 3), (mine, 4))
    own, shared, places = of_reservation(call)
    assert shared is not None
    assert (own.record, own.limits, own.costs) == (call.record, (mine,), (4,))
    assert (shared.record, shared.limits, shared.costs) == ("gw:{all}:call:call", (everybodys,), (3,))
    assert list(places) == [True, False]
    settlement = call.settlement(Usage(1, 1), uncertain=True)
    settlement.ended_us, settlement.sent_us, settlement.refused = 5, 6, True
    parts = of_settlement(settlement)
    assert [(one.limits, list(one.deltas), list(one.charges or ())) for one in parts] == [
        ((mine,), [-2], [2]),
        ((everybodys,), [-1], [2]),
    ]
    assert [(one.usage, one.refused) for one in parts] == [(Usage(1, 1), True), (None, False)]
    assert [(one.uncertain, one.ended_us, one.sent_us) for one in parts] == [(True, 5, 6)] * 2
    assert parts[1].account is EVERYBODYS
    assert [part for one in parts for part in of_settlement(one)] == list(parts)
