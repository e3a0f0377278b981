"""Notes of calls under way in the journal: for the next process alone, and until they end."""

import asyncio
import shutil
from pathlib import Path

import pytest

from gateway.admission.journal import line
from gateway.admission.journal.file import HEAD
from gateway.admission.journal.journal import Journal
from gateway.admission.reservation import Settlement
from tests.journals import CLOCK, files, opened, settlement, take_all, until
from tests.limiting import NOON_US, Remembering, limit, reservation


def noted(call_id: str) -> Settlement:
    return reservation(call_id, (limit("day", 100), 9), (limit("lease", 3), 1)).as_reserved()


async def copied(directory: Path, to: Path, lines: int) -> None:
    """Leave what is on disk to another, as a process does that is killed; there are so many lines."""
    (path,) = files(directory)
    await until(lambda: path.read_bytes().count(b"\n") == 1 + lines)
    await asyncio.to_thread(shutil.copytree, directory, to)


async def test_notes_are_for_the_next_process_behind_all_settlements(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    journal, after = opened(tmp_path), tmp_path_factory.mktemp("after") / "journal"
    for number in range(150):
        journal.note(noted(f"call-{number}"))
    journal.keep([settlement(f"call-{number}") for number in range(100)])
    assert len(journal) == 100
    await copied(tmp_path, after, 250)
    assert take_all(journal, 40) == [f"call-{number}" for number in range(100)]
    following = opened(after)
    assert len(following) == 250
    assert take_all(following, 40) == [f"call-{number}" for number in (*range(100), *range(150))]
    assert len(files(after)) == 1
    await following.close()
    journal.arrived([settlement(f"call-{number}") for number in range(100, 150)])
    await journal.close()
    assert files(tmp_path) == []


async def test_a_note_charges_as_reserved_whether_or_not_the_store_has_it_and_books_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.note(noted("call"))
    await journal.close()  # with the call under way, so it stays
    journal = opened(tmp_path)
    (found,) = journal.oldest(9)
    assert (found.deltas, found.charges, found.usage) == ([0, 0], [9, 1], None)
    assert (found.uncertain, found.ended_us) == (True, CLOCK.us)
    await journal.close()


async def test_lines_stay_on_disk_until_no_noted_call_is_under_way(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    (path,) = files(tmp_path)
    for call in ("in the store", "in the journal"):
        journal.note(noted(call))
    journal.keep([settlement("other")])
    await until(lambda: path.read_bytes().count(b"\n") == 4)
    assert take_all(journal) == ["other"]
    journal.arrived([settlement("in the store")])
    assert path.read_bytes().count(b"\n") == 4
    journal.keep([settlement("in the journal")])
    assert take_all(journal) == ["in the journal"]
    await until(lambda: path.read_bytes() == HEAD)
    await journal.close()
    assert files(tmp_path) == []


async def test_a_full_journal_takes_no_note_and_is_emptied_all_the_same(tmp_path: Path) -> None:
    observer = Remembering()
    size = len(line.written(noted("call-0"), now_us=NOON_US, admitted=True))
    journal = Journal(tmp_path, CLOCK, dropped=observer.settlement_dropped, max_bytes=len(HEAD) + 3 * size + 20)
    for number in range(5):
        journal.note(noted(f"call-{number}"))
    assert observer.dropped == 0
    journal.keep([settlement("call-0")])
    assert observer.dropped == 1
    journal.arrived([settlement(f"call-{number}") for number in range(1, 5)])
    await until(lambda: files(tmp_path)[0].read_bytes() == HEAD and not journal._own._in_hands)
    journal.keep([settlement("call-5")])
    assert take_all(journal) == ["call-5"]
    await journal.close()
    assert files(tmp_path) == []
