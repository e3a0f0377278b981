"""The journal alone: what is kept comes back, in order and once, whatever became of the process or the disk."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.digest import digest
from gateway.admission.journal import line, queue
from gateway.admission.journal.file import HEAD
from gateway.admission.journal.journal import Journal, JournalUnusable
from gateway.admission.ledger.account import Account
from gateway.admission.redis.parts import of_settlement
from gateway.admission.redis.scripts import Scripts
from gateway.admission.reservation import Settlement
from gateway.calls.usage import Usage
from tests.journals import CLOCK, files, opened, settlement, take, take_all, until
from tests.limiting import NOON_US, SECOND, Remembering, limit, reservation

SCRIPTS = Scripts(lease_s=30, retention_s=86_400)


async def left_by_a_process(directory: Path, *calls: str) -> Path:
    """Return the file that a process leaves that is killed: whole, and unlocked."""
    before = set(files(directory))
    journal = opened(directory)
    journal.keep([settlement(call) for call in calls])
    await journal.close()
    (path,) = set(files(directory)) - before
    return path


NAMES = st.text(min_size=1, max_size=20)
INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)


@given(
    tenant=NAMES,
    key=NAMES,
    usage=st.none() | st.builds(Usage, *[st.integers(0, 2**53)] * 4, st.sampled_from(["engine", "estimated"])),
    adds=st.lists(st.tuples(INTEGERS, st.integers(0, 2**53)), max_size=3),
    charged=st.booleans(),
    now_us=st.integers(NOON_US, 2 * NOON_US),
)
def test_a_line_says_all_of_a_settlement_and_is_one_line_of_json(
    tenant: str,
    key: str,
    usage: Usage | None,
    adds: list[tuple[int, int]],
    charged: bool,
    now_us: int,
) -> None:
    limits = tuple(limit("bucket", 7, rule=f"rule-{i}") for i in range(len(adds)))
    charges = [charge for _, charge in adds] if charged else None
    account = Account(tenant, key, "m", digest(tenant))
    asked = Settlement("call", account, limits, [add for add, _ in adds], usage, charged, charges)
    text = line.written(asked, now_us=now_us)
    assert text.count(b"\n") == 1
    assert json.loads(text)["tenant"] == tenant
    found = line.read(text)
    assert (found.call_id, found.deltas, found.usage) == (asked.call_id, asked.deltas, asked.usage)
    assert (found.uncertain, found.charges, found.ended_us) == (charged, charges, now_us)
    assert [(one.key, one.kind, one.limit, one.window_us) for one in found.limits] == [
        (one.key, one.kind, one.limit, one.window_us) for one in limits
    ]
    assert found.record == asked.record
    assert (found.account.key, found.account.model) == (key, "m")


def test_what_a_forgetful_store_never_saw_is_written_as_uncertain_and_what_it_may_have_taken_with_when() -> None:
    unseen = reservation("unseen", (limit("day", 100), 9)).settlement(Usage(1, 1), charging=True)
    sent = reservation("sent", (limit("day", 100), 9)).settlement(Usage(1, 1), charging=True)
    sent.sent_us = NOON_US - SECOND
    read = [line.read(line.written(one, now_us=NOON_US)) for one in (unseen, sent)]
    assert [one.charges for one in read] == [[2], [2]]
    assert [(one.uncertain, one.sent_us) for one in read] == [(True, 0), (False, NOON_US - SECOND)]


def test_everybodys_part_of_a_call_and_a_refusal_are_read_as_they_were() -> None:
    call = reservation("call", (limit("day", 100, key="gw:{all}:day"), 9), (limit("day", 100), 9))
    settlement = call.settlement(None)
    settlement.refused = True
    own, everybodys = [line.read(line.written(one, now_us=NOON_US)) for one in of_settlement(settlement)]
    assert (own.record, own.refused) == (call.record, True)
    assert (everybodys.record, everybodys.refused) == ("gw:{all}:call:call", False)


def test_a_line_is_read_by_people() -> None:
    fields = json.loads(line.written(settlement("call-1", tokens=5), now_us=NOON_US))
    assert fields == {
        "call": "call-1",
        "ended": "2026-11-29T12:00:00+00:00",
        "tenant": "acme",
        "key": "key-1",
        "model": "m",
        "usage": {"prompt": 5, "completion": 2, "cached": 0, "reasoning": 0, "source": "engine"},
        "uncertain": True,
        "charged": True,
        "limits": [
            {"key": limit("day", 100).key, "kind": "day", "limit": 100, "window_us": 0, "add": -2, "charge": 7},
            {"key": limit("lease", 3).key, "kind": "lease", "limit": 3, "window_us": 0, "add": -1, "charge": 0},
        ],
    }


JSON = st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(text=st.binary(max_size=200) | JSON)
def test_what_is_no_line_is_unreadable_and_nothing_worse(text: bytes) -> None:
    with pytest.raises(line.LineUnreadable):
        line.read(text)


@given(data=st.data())
def test_a_line_that_somebody_changed_is_unreadable_or_harmless(data: st.DataObject) -> None:
    fields = json.loads(line.written(settlement("call-1"), now_us=NOON_US))
    place = data.draw(st.sampled_from([fields, fields["usage"], *fields["limits"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(
        st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers()) | st.just({})
    )
    try:
        found = line.read(json.dumps(fields).encode())
    except line.LineUnreadable:
        return
    SCRIPTS.settle(found)


async def test_what_is_kept_comes_back_in_order_whether_or_not_it_is_on_disk_yet(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    kept: list[str] = []
    taken: list[str] = []
    for number in range(300):
        calls = [f"call-{number}-{i}" for i in range(number % 4)]
        journal.keep([settlement(call) for call in calls])
        kept += calls
        assert len(journal) == len(kept) - len(taken)
        if number % 3 == 0:
            taken += take(journal, 5)
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    taken += take_all(journal, 5)
    assert taken == kept
    await journal.close()
    assert files(tmp_path) == []


async def test_a_journal_that_was_emptied_is_used_again_from_its_beginning(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    (path,) = files(tmp_path)
    for number in range(3):
        journal.keep([settlement(f"call-{number}")])
        await until(lambda: path.stat().st_size > len(HEAD))
        assert take_all(journal) == [f"call-{number}"]
        await until(lambda: path.stat().st_size == len(HEAD))
    await journal.close()


async def test_what_a_process_left_comes_first_and_its_file_goes_when_all_is_taken(tmp_path: Path) -> None:
    path = await left_by_a_process(tmp_path, *[f"old-{i}" for i in range(600)])
    journal = opened(tmp_path)
    journal.keep([settlement("new")])
    assert len(journal) == 601
    assert take(journal) == [f"old-{i}" for i in range(250)]
    assert path.exists()
    assert take_all(journal) == [*[f"old-{i}" for i in range(250, 600)], "new"]
    assert not path.exists()
    await journal.close()


async def test_what_was_taken_in_part_is_all_there_for_the_next(tmp_path: Path) -> None:
    await left_by_a_process(tmp_path, *[f"old-{i}" for i in range(300)])
    journal = opened(tmp_path)
    assert len(take(journal)) == 250
    await journal.close()
    journal = opened(tmp_path)
    assert take_all(journal) == [f"old-{i}" for i in range(300)]
    await journal.close()


@pytest.mark.parametrize("cut", [1, 2, 100])
async def test_a_last_line_that_was_cut_short_is_dropped_unless_all_of_it_is_there(tmp_path: Path, cut: int) -> None:
    path = await left_by_a_process(tmp_path, "whole", "torn")
    path.write_bytes(path.read_bytes()[:-cut])
    observer = Remembering()
    journal = opened(tmp_path, observer)
    assert len(journal) == 2
    assert take_all(journal) == (["whole", "torn"] if cut == 1 else ["whole"])
    assert observer.dropped == (0 if cut == 1 else 1)
    assert not path.exists()
    await journal.close()


async def test_lines_that_cannot_be_read_cost_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = await left_by_a_process(tmp_path, "first", "last")
    head, first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + b"{}\n" * 300 + first + b"\xff\n" + last)
    observer = Remembering()
    journal = opened(tmp_path, observer)
    assert take_all(journal) == ["first", "last"]
    assert observer.dropped == 301
    assert "is dropped" in caplog.text
    await journal.close()


async def test_a_file_of_more_than_one_block_comes_whole(tmp_path: Path) -> None:
    calls = [f"{'x' * 5000}-{i}" for i in range(700)]
    await left_by_a_process(tmp_path, *calls)
    journal = opened(tmp_path)
    assert len(journal) == 700
    assert take_all(journal) == calls
    await journal.close()


async def test_two_processes_in_one_directory_leave_each_other_alone(tmp_path: Path) -> None:
    old = await left_by_a_process(tmp_path, "old")
    one, other = opened(tmp_path), opened(tmp_path)
    one.keep([settlement("of one")])
    other.keep([settlement("of the other")])
    third = opened(tmp_path)
    assert len(third) == 0
    assert take_all(other) == ["of the other"]
    assert take_all(one) == ["old", "of one"]
    assert not old.exists()
    for journal in (one, other, third):
        await journal.close()
    assert files(tmp_path) == []


async def test_a_file_of_another_format_stays_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = tmp_path / "other.jsonl"
    foreign.write_bytes(b'{"journal":2}\n{"call":"x"}\n')
    journal = opened(tmp_path)
    assert len(journal) == 0
    await journal.close()
    assert files(tmp_path) == [foreign]
    assert "this version" in caplog.text


async def test_a_file_that_somebody_cut_while_it_was_read_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await left_by_a_process(tmp_path, *[f"old-{i}" for i in range(600)])
    journal = opened(tmp_path)
    journal.keep([settlement("new")])
    take(journal)
    path.write_bytes(HEAD)
    assert take_all(journal) == ["new"]
    assert "given up" in caplog.text
    await journal.close()


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size`, as where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_fills_up_costs_nothing_while_there_is_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Remembering()
    journal = opened(tmp_path, observer)
    (path,) = files(tmp_path)
    with files_end_at(1000):
        for number in range(5):
            journal.keep([settlement(f"full-{number}")])
            await until(lambda: not journal._own._in_hands)
        assert path.stat().st_size < 1000
    assert caplog.text.count("cannot be written") == 1
    journal.keep([settlement("room again")])
    await until(lambda: not journal._own._unwritten)
    assert path.read_bytes().count(b"\n") == 7
    assert take_all(journal) == [*[f"full-{number}" for number in range(5)], "room again"]
    assert observer.dropped == 0
    await journal.close()


async def test_what_the_disk_does_not_take_before_the_end_is_counted(tmp_path: Path) -> None:
    observer = Remembering()
    journal = opened(tmp_path, observer)
    with files_end_at(len(HEAD) + 10):
        journal.keep([settlement(f"lost-{i}") for i in range(3)])
        await journal.close()
    assert observer.dropped == 3


async def test_a_full_journal_drops_the_newest_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Remembering()
    size = len(line.written(settlement("call-0"), now_us=NOON_US))
    journal = Journal(tmp_path, CLOCK, dropped=observer.settlement_dropped, max_bytes=len(HEAD) + 5 * size)
    for number in range(9):
        journal.keep([settlement(f"call-{number}")])
        await asyncio.sleep(0.001)
    assert observer.dropped == 4
    assert caplog.text.count("is full") == 1
    assert take_all(journal) == [f"call-{number}" for number in range(5)]
    await until(lambda: not journal._own._in_hands)
    journal.keep([settlement("call-9")])
    assert take_all(journal) == ["call-9"]
    await journal.close()


async def test_memory_is_bounded_where_the_disk_takes_nothing(tmp_path: Path) -> None:
    observer = Remembering()
    journal = opened(tmp_path, observer)
    large = settlement("x" * 2**20)
    with files_end_at(len(HEAD)):
        for _ in range(40):
            journal.keep([large])
        assert len(journal) == queue.MAX_UNWRITTEN // 2**20 - 1
        assert observer.dropped == 40 - len(journal)
        await journal.close()
    assert observer.dropped == 40


@pytest.mark.parametrize("directory", ["missing", "file/below", "file"])
def test_a_directory_that_does_not_serve_is_told_with_what_to_do(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalUnusable, match=rf"limits.journal: .*{directory}: (No such|Not a).*Name a directory"):
        opened(tmp_path / directory)


def test_a_disk_without_room_is_told_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    with files_end_at(3), pytest.raises(JournalUnusable, match="File too large"):
        opened(tmp_path)
    assert files(tmp_path) == []
