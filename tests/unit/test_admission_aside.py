"""What cannot be taken yet is put aside, in memory and in the journal: nobody waits for it, and nothing is lost."""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.journal.file import HEAD
from gateway.admission.redis.backlog import Backlog, Memory
from gateway.admission.reservation import Settlement
from tests.journals import files, opened, settlement, take_all, until
from tests.limiting import Remembering, limit, reservation


def noted(call_id: str) -> Settlement:
    return reservation(call_id, (limit("day", 100), 9)).as_reserved()


class Deliveries:
    """What is taken of a backlog, as masters are away: what is behind a call that was put aside waits too."""

    def __init__(self, waiting: Backlog[Settlement]) -> None:
        self.away: set[str] = set()
        self.taken: list[str] = []
        self._waiting = waiting
        self._behind: set[str] = set()

    def take(self, at_most: int) -> bool:
        """Take what comes next, but for calls of whoever is away: `b3` is one of b's. Return whether any came."""
        calls = [one.call_id for one in self._waiting.oldest(at_most)]
        assert calls == [one.call_id for one in self._waiting.oldest(at_most)]
        self._behind |= self.away & {call[0] for call in calls}
        if calls:
            self._waiting.taken(aside={number for number, call in enumerate(calls) if call[0] in self._behind})
        self.taken += [call for call in calls if call[0] not in self._behind]
        return bool(calls)

    def take_all(self, at_most: int) -> list[str]:
        """Take all that comes; return it."""
        before = len(self.taken)
        while self.take(at_most):
            pass
        return self.taken[before:]

    def again(self) -> None:
        """Have what was put aside come again."""
        self._behind.clear()
        self._waiting.again()


async def left(directory: Path, calls: list[str], notes: list[str]) -> None:
    """Leave a file as a process that was killed."""
    journal = opened(directory)
    for call in notes:
        journal.note(noted(call))
    for call in calls:
        journal.keep([settlement(call)])
    await journal.close()


Step = tuple[str, list[str] | int | str | None]
WHOSE = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.just("keep"), st.lists(WHOSE, min_size=1, max_size=5))
    | st.tuples(st.just("take"), st.integers(1, 9))
    | st.tuples(st.sampled_from(["leaves", "returns"]), WHOSE)
    | st.tuples(st.sampled_from(["again", "written"]), st.none()),
    min_size=30,
    max_size=60,
)


@pytest.mark.parametrize("kind", ["memory", "journal"])
@settings(max_examples=15)
@given(steps=STEPS)
def test_whatever_is_put_aside_and_comes_again_all_is_taken_once_and_in_each_ones_order(
    kind: str, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(None if kind == "memory" else Path(directory), steps))


async def follow(directory: Path | None, steps: list[Step]) -> None:
    kept: list[str] = []
    waiting: Backlog[Settlement] = Memory(Remembering().settlement_dropped)
    if directory is not None:
        kept += [f"{whose}{number}" for number, whose in enumerate("abcabc")]
        await left(directory, kept, [])
        waiting = opened(directory)
    deliveries = Deliveries(waiting)
    for step, what in steps:
        match step, what:
            case "keep", list():
                calls = [f"{whose}{len(kept) + number}" for number, whose in enumerate(what)]
                waiting.keep([settlement(call) for call in calls])
                kept += calls
            case "take", int():
                deliveries.take(what)
            case "leaves", str():
                deliveries.away.add(what)
            case "returns", str():
                deliveries.away.discard(what)
            case "again", _:
                deliveries.again()
            case _:
                await asyncio.sleep(0.001)
        assert len(waiting) == len(kept) - len(deliveries.taken)
    deliveries.away.clear()
    deliveries.again()
    deliveries.take_all(3)
    for whose in "abc":
        assert [call for call in deliveries.taken if call[0] == whose] == [call for call in kept if call[0] == whose]
    assert len(waiting) == 0
    await waiting.close()
    if directory is not None:
        assert files(directory) == []


async def test_the_file_of_a_dead_process_stays_until_what_was_put_aside_is_taken_and_notes_come_behind_it(
    tmp_path: Path,
) -> None:
    calls = [f"{whose}{number}" for number in range(200) for whose in "ab"]
    await left(tmp_path, calls, ["a0", "b0", "b-under-way"])
    journal = opened(tmp_path)
    journal.keep([settlement("a-own"), settlement("b-own")])
    assert len(journal) == 405
    deliveries = Deliveries(journal)
    deliveries.away = {"b"}
    assert deliveries.take_all(90) == [*calls[::2], "a0", "a-own"]
    assert len(journal) == 203
    assert len(files(tmp_path)) == 2
    await until(lambda: not journal._own._unwritten)
    after = tmp_path.parent / "after"
    await asyncio.to_thread(shutil.copytree, tmp_path, after)  # as if it were killed here
    deliveries.away = {"a"}
    deliveries.again()
    assert deliveries.take_all(90) == [*calls[1::2], "b0", "b-under-way", "b-own"]
    assert len(journal) == 0
    await until(lambda: [path.read_bytes() for path in files(tmp_path)] == [HEAD])
    await journal.close()
    following = opened(after)
    assert Counter(take_all(following)) == Counter([*calls, "a0", "b0", "b-under-way", "a-own", "b-own"])
    await following.close()
    assert files(after) == []


async def test_of_too_many_in_memory_those_that_were_put_aside_are_dropped_first() -> None:
    observer = Remembering()
    waiting: Memory[Settlement] = Memory(observer.settlement_dropped, most=4)
    waiting.keep([settlement(call) for call in ("a0", "b1", "a2", "b3")])
    deliveries = Deliveries(waiting)
    deliveries.away = {"a"}
    assert deliveries.take_all(9) == ["b1", "b3"]
    waiting.keep([settlement(call) for call in ("b4", "b5", "b6")])
    assert observer.dropped == 1
    handed_out = waiting.oldest(2)
    waiting.keep([settlement(call) for call in ("b7", "b8")])
    assert [one.call_id for one in handed_out] == ["b4", "b5"]
    assert observer.dropped == 3
    waiting.taken(aside={0, 1})  # the first is dropped by now
    deliveries.away = set()
    deliveries.again()
    assert deliveries.take_all(9) == ["b5", "b6", "b7", "b8"]
