"""How many settings there may be: those that ended long ago are in nobody's way."""

import pytest

from gateway.admission.settings import shelf
from gateway.admission.settings.entry import Entry
from gateway.admission.settings.memory import MemorySettings
from gateway.admission.settings.settings import Change
from gateway.errors import InvalidValue
from tests.limiting import SetClock


class Ends:
    def __init__(self, until: int | None) -> None:
        self.until = until


def judged(name: str, value: bytes) -> Entry[Ends]:
    return Entry(name, value, Ends(int(value) or None), None)


@pytest.mark.parametrize("until", [b"1", b"0"], ids=["all ended", "none has an end"])
async def test_there_is_room_for_a_change_where_enough_ended_long_ago(until: bytes) -> None:
    settings = MemorySettings()
    await settings.change([Change(f"n{number}", until) for number in range(shelf.MAX_ENTRIES)])
    kept = shelf.Shelf(settings, judged, SetClock(), what="override")
    if until == b"1":
        assert [entry.name for entry in await kept.put("new", b"0")] == ["new"]
        return
    with pytest.raises(InvalidValue, match="10000 overrides already"):
        await kept.put("new", b"0")
    assert len(await kept.put("n1", b"0")) == shelf.MAX_ENTRIES
