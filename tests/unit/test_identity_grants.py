"""What issuers granted and refused, by the clock: never beyond its bound, never more memory than there may be."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import IdentityUnavailable
from gateway.identity import grant
from gateway.identity.endpoint import IssuerFailed
from gateway.identity.grant import Grant
from gateway.identity.grants import Grants
from gateway.identity.principal import Principal
from gateway.identity.refused import TokenRefused
from tests.identity_provider import SetClock


class Issuer:
    """Answers as it is set; remembers until when its last word holds."""

    def __init__(self, clock: SetClock, *, lives_s: float = 60.0) -> None:
        self.clock = clock
        self.lives_s = lives_s
        self.mood = "well"
        self.bound = 0.0
        self.asked = self.renewals = 0

    async def ask(self, token: str, *, renewal: bool) -> Grant:
        self.asked += 1
        self.renewals += renewal
        if self.mood == "away":
            raise IssuerFailed("away")
        if self.mood == "refusing" or token.startswith("bad"):
            self.bound = 0.0 if token == "token" else self.bound
            raise TokenRefused("inactive")
        now = self.clock.now()
        self.bound = now + self.lives_s
        until = self.bound - grant.MARGIN_S
        return Grant(Principal("t", token), now + grant.RENEW_AT * (until - now), until, self.bound)


def held_by(issuer: Issuer, **capacities: int) -> Grants:
    return Grants(
        "idp", issuer, key_set=None, clock=issuer.clock, timeout_s=5, asked=lambda _i, _r, _s: None, **capacities
    )


STEPS = st.lists(
    st.tuples(st.floats(0.01, 25.0), st.sampled_from(["well", "away", "refusing"])), min_size=1, max_size=30
)


@given(STEPS, st.floats(25.0, 120.0))
def test_no_answer_counts_beyond_the_issuers_last_word(steps: list[tuple[float, str]], lives_s: float) -> None:
    clock = SetClock()
    issuer = Issuer(clock, lives_s=lives_s)

    async def run() -> None:
        held = held_by(issuer)
        for seconds, mood in steps:
            clock.advance(seconds)
            issuer.mood = mood
            try:
                accepted = await held.accept("token")
            except TokenRefused:
                continue
            except IdentityUnavailable:
                assert mood == "away"
                assert clock.now() >= issuer.bound
                continue
            assert clock.now() < accepted.until <= issuer.bound
            for _ in range(3):  # a renewal may take its turn
                await asyncio.sleep(0)
        await held.close()

    asyncio.run(run())


async def test_a_full_memory_forgets_the_oldest() -> None:
    issuer = Issuer(SetClock())
    held = held_by(issuer, capacity=3, refused_capacity=2)
    for token in ("a", "b", "c", "d", "bad1", "bad2", "bad3"):
        if token.startswith("bad"):
            with pytest.raises(TokenRefused):
                await held.accept(token)
        else:
            await held.accept(token)
    assert issuer.asked == 7
    for token in ("d", "c", "b"):
        await held.accept(token)
    for token in ("bad3", "bad2"):
        with pytest.raises(TokenRefused):
            await held.accept(token)
    assert issuer.asked == 7
    await held.accept("a")
    with pytest.raises(TokenRefused):
        await held.accept("bad1")
    assert issuer.asked == 9


async def test_each_of_many_callers_gets_an_error_of_its_own() -> None:
    issuer = Issuer(SetClock())
    issuer.mood = "away"
    held = held_by(issuer)
    errors = await asyncio.gather(*(held.accept("token") for _ in range(3)), return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    assert {(type(error), str(error)) for error in errors} == {(IssuerFailed, str(errors[0]))}
    assert issuer.asked == 1
    assert all(isinstance(error, IssuerFailed) and error.why == "away" and error.headers for error in errors)


async def test_a_short_lived_grant_is_not_used_in_its_second_half() -> None:
    principal = Principal("t", "k")
    short = grant.for_passport(principal, None, now=100.0, expires_at=108.0)  # type: ignore[arg-type]
    assert short.renew_at == pytest.approx(102.8)
    assert (short.until, short.bound) == (104.0, 108.0)
    over = grant.for_passport(principal, None, now=100.0, expires_at=99.0)  # type: ignore[arg-type]
    assert over.until <= over.bound == 99.0
