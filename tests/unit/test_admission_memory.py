"""What memory holds of callers that are long gone."""

from gateway.admission.memory import MemoryStore
from tests.limiting import SECOND, SetClock, limit, reservation


async def test_memory_follows_the_keys_in_use_not_all_that_ever_were() -> None:
    clock = SetClock()
    store = MemoryStore(clock, lease_s=30)
    for i in range(60_000):
        clock.us += 600 * SECOND
        asked = reservation(f"call-{i}", (limit("bucket", 10, rule=f"key-{i}"), 1), (limit("lease", 100), 1))
        assert (await store.reserve(asked)).admitted
        if i % 2:
            store.settle(asked.settlement(None))
    assert len(store._counts) + len(store._records) < 3 * 4096
