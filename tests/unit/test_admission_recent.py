"""What a server took lately, and for how long that is remembered."""

from gateway.admission.redis.backlog import MAX_WAITING
from gateway.admission.redis.recent import KEPT_S, Recent
from tests.limiting import SECOND, SetClock


def test_what_is_too_old_or_too_much_is_forgotten_oldest_first() -> None:
    clock = SetClock()
    recent = Recent[int](clock)
    recent.add([1, 2])
    clock.us += round(KEPT_S / 2 * SECOND)
    recent.add([3])
    clock.us += round(KEPT_S / 2 * SECOND)
    recent.add([4, 5])
    assert recent.recall() == [3, 4, 5]
    assert recent.recall() == []
    for number in range(MAX_WAITING + 3):
        recent.add([number])
    assert recent.recall() == list(range(3, MAX_WAITING + 3))
