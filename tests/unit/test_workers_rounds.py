"""Many who ask at once cost one round or two, and each is told what was so when he asked, or later."""

import asyncio

import pytest

from gateway.workers.rounds import Rounds


async def test_who_asks_amid_a_round_shares_the_next_with_all_others() -> None:
    go, begun = asyncio.Event(), 0

    async def work() -> int:
        nonlocal begun
        begun += 1
        number = begun
        await go.wait()
        if number == 3:
            raise ZeroDivisionError
        return number

    rounds = Rounds(work)
    first = [asyncio.create_task(rounds.result()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert begun == 1
    late = [asyncio.create_task(rounds.result()) for _ in range(10)]
    await asyncio.sleep(0)
    late[0].cancel()
    go.set()
    assert await asyncio.gather(*first) == [1, 1]
    assert await asyncio.gather(*late[1:]) == [2] * 9
    assert late[0].cancelled()
    with pytest.raises(ZeroDivisionError):
        await rounds.result()
    assert await rounds.result() == 4
