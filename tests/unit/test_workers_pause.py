from gateway.workers.pause import Pauses


def test_a_first_death_costs_no_time_and_quick_ones_after_it_ever_more() -> None:
    pauses = Pauses()
    assert [pauses.next(1.0) for _ in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_one_that_ran_for_long_starts_anew() -> None:
    pauses = Pauses()
    for _ in range(5):
        pauses.next(1.0)
    assert pauses.next(60.0) == 0.0
    assert pauses.next(1.0) == 0.0
    assert pauses.next(1.0) == 0.5
