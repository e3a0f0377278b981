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
from gateway.admission.redis import backlog
from gateway.admission.redis.backlog import Backlog, Memory
from gateway.admission.reservation import Settlement
from tests.journals import files, opened, settlement, take_all, until
from tests.limiting import Remembering, limit, reservation


def noted(call_id: str) -> Settlement:
    return reservation(call_id, (limit("day", 100), 9)).as_reserved()


def take(waiting: Backlog[Settlement], away: set[str], at_most: int = 250) -> list[str]:
    """Take what comes next, but for calls of whoever is away; `b3` is the third of b."""
    posts = waiting.oldest(at_most)
    assert [one.call_id for one in posts] == [one.call_id for one in waiting.oldest(at_most)]
    aside = {number for number, one in enumerate(posts) if one.call_id[0] in away}
    if posts:
        waiting.taken(aside=aside)
    return [one.call_id for number, one in enumerate(posts) if number not in aside]


def take_rest(waiting: Backlog[Settlement], away: set[str], at_most: int = 250) -> list[str]:
    calls = []
    while waiting.oldest(at_most):
        calls += take(waiting, away, at_most)
    return calls


async def left(directory: Path, calls: list[str], notes: list[str]) -> None:
    """Leave a file as a process that was killed."""
    journal = opened(directory)
    for call in calls:
        journal.keep([settlement(call)])
    for call in notes:
        journal.note(noted(call))
    await journal.close()


STEPS = st.lists(
    st.tuples(st.just("keep"), st.lists(st.sampled_from("abc"), min_size=1, max_size=5))
    | st.tuples(st.just("take"), st.integers(1, 4))
    | st.tuples(st.sampled_from(["leaves", "returns"]), st.sampled_from("abc"))
    | st.tuples(st.just("written"), st.none()),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["memory", "journal"])
@settings(max_examples=50)
@given(steps=STEPS)
def test_whatever_is_put_aside_and_comes_again_all_is_taken_once_and_in_each_ones_order(
    kind: str, steps: list[tuple[str, list[str] | int | str | None]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(Memory(Remembering().settlement_dropped) if kind == "memory" else Path(directory), steps))


async def follow(kept_in: Memory[Settlement] | Path, steps: list[tuple[str, list[str] | int | str | None]]) -> None:
    waiting: Backlog[Settlement]
    kept: list[str] = []
    if isinstance(kept_in, Path):
        before = [f"{whose}{number}" for number, whose in enumerate("abcabc")]
        await left(kept_in, before, [])
        kept += before
        waiting = opened(kept_in)
    else:
        waiting = kept_in
    taken: list[str] = []
    away: set[str] = set()
    for step, what in steps:
        if step == "keep" and isinstance(what, list):
            calls = [f"{whose}{len(kept) + number}" for number, whose in enumerate(what)]
            waiting.keep([settlement(call) for call in calls])
            kept += calls
        elif step == "take" and isinstance(what, int):
            taken += take(waiting, away, what)
        elif step == "leaves":
            taken += take_rest(waiting, away)  # who left amid a round waits for the next, for its order's sake
            away.add(str(what))
        elif step == "returns":
            taken += take_rest(waiting, away)
            away.discard(str(what))
            waiting.again()
        else:
            await asyncio.sleep(0.001)
        assert len(waiting) == len(kept) - len(taken)
    taken += take_rest(waiting, away)
    assert all(call[0] in away for call in set(kept) - set(taken))
    waiting.again()
    taken += take_rest(waiting, set(), 3)
    for whose in "abc":
        assert [call for call in taken if call[0] == whose] == [call for call in kept if call[0] == whose]
    assert len(waiting) == 0
    await waiting.close()
    if isinstance(kept_in, Path):
        assert files(kept_in) == []


async def test_the_file_of_a_dead_process_stays_until_what_was_put_aside_is_taken_and_notes_come_behind_it(
    tmp_path: Path,
) -> None:
    calls = [f"{whose}{number}" for number in range(200) for whose in "ab"]
    await left(tmp_path, calls, ["a0", "b0", "b-under-way"])
    journal = opened(tmp_path)
    journal.keep([settlement("a-own"), settlement("b-own")])
    assert len(journal) == 405
    of_a = [call for call in calls if call[0] == "a"]
    assert take_rest(journal, {"b"}, 90) == [*of_a, "a0", "a-own"]
    assert len(journal) == 203
    assert len(files(tmp_path)) == 2
    await until(lambda: not journal._own._unwritten)
    after = tmp_path.parent / "after"
    await asyncio.to_thread(shutil.copytree, tmp_path, after)  # as if it were killed here
    journal.again()
    assert take_rest(journal, {"a"}, 90) == [
        *[call for call in calls if call[0] == "b"], "b0", "b-under-way", "b-own"
    ]  # fmt: skip
    assert len(journal) == 0
    await until(lambda: [path.read_bytes() for path in files(tmp_path)] == [HEAD])
    await journal.close()
    following = opened(after)
    assert Counter(take_all(following)) == Counter([*calls, "a0", "b0", "b-under-way", "a-own", "b-own"])
    await following.close()
    assert files(after) == []


async def test_of_too_many_in_memory_those_that_were_put_aside_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "MAX_WAITING", 4)
    observer = Remembering()
    waiting: Memory[Settlement] = Memory(observer.settlement_dropped)
    waiting.keep([settlement(call) for call in ("a0", "b1", "a2", "b3")])
    assert take_rest(waiting, {"a"}) == ["b1", "b3"]
    waiting.keep([settlement(call) for call in ("b4", "b5", "b6")])
    assert observer.dropped == 1
    handed_out = waiting.oldest(2)
    waiting.keep([settlement(call) for call in ("b7", "b8")])
    assert [one.call_id for one in handed_out] == ["b4", "b5"]
    assert observer.dropped == 3
    waiting.taken(aside={0, 1})  # the first is dropped by now
    waiting.again()
    assert take_rest(waiting, set()) == ["b5", "b6", "b7", "b8"]
